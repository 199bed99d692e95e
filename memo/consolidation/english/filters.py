"""What is not a lasting statement of the user: questions, hypotheticals, other people's words, tasks, roles, secrets.

Each filter is one pattern over one sentence or clause. Precision first: a filter may drop a true statement.
"""

from __future__ import annotations

import re

from memo.consolidation.english.vocabulary import any_of


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.VERBOSE)


RULE_MARKER = _pattern(
    r"""\b(?:always|never|from\ now\ on|in\ (?:the\ )?future|going\ forward|from\ here\ on|every\ ?time|each\ time
    |by\ default
    |whenever|everywhere|at\ all\ times|in\ general|generally|as\ a\ rule|without\ exception|throughout
    |please\ remember
    |keep\ in\ mind|max(?:imum)?|at\ most|no\ more\ than|under\ \d+|ever|only|in\ all|for\ (?:all|any
    |every)\w*|any\ time
    |each|every|when\ you|when\ i\ (?!was|grow)|all\ (?:\w+\ ){1,2}in|all\ (?:my|our|the|your|times|dates|prices
    |amounts|examples
    |code))\b"""
)
"""Words that make a request a rule instead of one task."""

LASTING = _pattern(
    r"\b(?:always|never|from\ now\ on|in\ (?:the\ )?future|going\ forward|every\ ?\w+|each|by\ default"
    r"|whenever|everywhere|at\ all\ times|in\ general|as\ a\ rule|ever)\b"
)
"""The markers that leave no doubt."""
QUESTION = _pattern(
    r"""\?\W*$|^(?:what(?:'?s|\ (?!i\ )\w+)?\b|how(?!ever)\b|why\b|where(?:'s|\ (?:is|are|do|does|did|can|should))\b
    |which\b(?!ever)
    |who(?:'s|se|m)?\b|when\ (?:is|are|do|does|did|can|should|will)\b
    |(?:can|could|would|will|should|shall|is|are|am|was|were|do|does|did|has|have|isn't|aren't|don't\ you
    |can't|wouldn't)
      \ (?:i|we|you|u|he|she|it|they|this|that|these|those|there|the|my|our|an?|someone|people|anyone|\w+ing)\b
    |is\ (?!better|not|more)\w+|are\ \w+|does\ \w+|any\ (?:idea|ideas|chance|tips|suggestions|thoughts)\b
    |thoughts\b)"""
)

HYPOTHETICAL = _pattern(
    r"""^(?:(?:so|and|but|ok|okay|now|then|well),?\ )?(?:what\ if|if\b|suppos(?:e|ing)\b|imagin(?:e|ing)\b
    |let's\ (?:say|assume|pretend|imagine)
    |say,|say\ (?:i|we)\b|assum(?:e|ing)\ (?:i|we|that|the|my|our)\b(?!\ (?:know|don't|do\ not|understand
    |have\ no|am\ new|never))|pretend|hypothetically|in\ theory|theoretically|unless|as\ if|maybe|perhaps
    |for\ example|for\ instance|e\.g|were\ (?:i|we)\b|had\ (?:i|we)\b|in\ case\b|provided\b|when\ i\ (?:was
    |grow|retire)|one\ day\b|some\ ?day\b)
    |\b(?:if\ (?:i|we|he|she|they|my|our|it|you|the|a|\w+)\ (?:were|was|had|moved|used|switched|lived|worked
    |did|could|would)\b
    |(?:i|we)\ (?:would|might|may|could|should|shall)\ (?!rather|like|prefer|love|be\ grateful|appreciate)
    |i'd\ (?!rather|like|prefer|love|appreciate|be\ grateful)
    |would\ (?:i|we)\b|were\ to\b|hypothetical\w*|in\ an?\ ideal\ world|i\ wish|wish\ (?:i|we)|if\ only
    |dream\ of|some\ day|someday
    |thinking\ (?:of|about)\ (?:moving|switching|using|going|buying|leaving)|considering|not\ decided
    |might\ (?:be\ )?\w+
    |curious\ (?:if|whether|what))\b"""
)

ASKED_WHEN = _pattern(
    r"^(?:if|when|whenever|before|after|while|every\ time|any\ time|anytime|each\ time)\ (?:you|unsure"
    r"|in\ doubt|not\ sure|something\ is\ unclear)"
    r"\b[^,]{0,80},?\ "
)
"""A condition about the assistant's own work opens a rule, not a hypothetical: "when you write SQL, …"."""

REPORTED = _pattern(
    r"""\b(?:sa(?:ys?|id|ying)|tells?|told|wrote|writes|written\ by|thinks|thought|believes?|believed|claim(?:s|ed)
    |insist(?:s|ed)?
    |suggest(?:s|ed)|recommend(?:s|ed)|reckons?|wants?|wanted|wish(?:es|ed)|asked|asks|argue[sd]?|swears
    |mention(?:s|ed)|complain\w*|say|think|want|believe
    |prefers?|preferred|loves|likes(?!\ to\ be)|according\ to|repl(?:ies|ied)|answered|announce[sd]?
    |keeps?\ (?:saying|asking|telling)|quot(?:e|es|ed|ing)
    |advise[sd]?|state[sd]|demand(?:s|ed)|would\ (?:like|prefer|love)|fan\ of|opinion|expects?|posted|tweeted
    |emailed|texted|agrees|favou?rs|motto|finds?\ (?:it|them|that|this))\b"""
)
SAID = _pattern(
    r"\b(?:says|said|told|wrote|thinks|thought|according\ to|claims|claimed|insists|replied|suggested"
    r"|recommended|wants|prefers)\b"
)
"""The narrower form for requests, which name replies and preferences themselves."""
OTHER_SUBJECT = _pattern(
    r"""^(?:he|she|they|it|someone|somebody|everyone|everybody|nobody|people|most\ people|some\ people|others?|users?
    |customers?|clients?
    |guests?|readers|(?:the|a|an|this|that|his|her|their|another|some)\ (?:\w+\ ){0,2}?(?:user|customer|client
    |author|writer|reviewer|article|page|document|email|mail
    |letter|text|book|paper|blog\ post|post|comment|readme|message|log|hero|character|narrator|man|woman|guy
    |person|speaker|candidate
    |applicant|teacher|colleague|competitor|vendor|assistant|model|ai|bot|sign|flyer|review|website|tutorial
    |docs|manual))\b(?:'s|'re|'ve)?"""
)

ONE_OFF = _pattern(
    r"""\b(?:(?:this|these)\b(?!\ (?:repo\w*|project|codebase|team|company|office|country|house|month|year|summer
    |winter|autumn|spring|fall|semester|term
      |week|days|way|style|account|machine|household|town|city)\b)
    |(?:by|until|till|on|next|coming)\ \w+day\b(?!s)|next\ (?:week|month|year|time)|(?:line|row|column|page
    |section|step|chapter|figure|question|item|slide)\ \d+\b
    |yes\ or\ no|yes/no|today|tonight|right\ now|at\ the\ moment|for\ now|yesterday|tomorrow|just\ now
    |this\ (?:morning|time|afternoon|evening)|last\ night|later
    |in\ a\ (?:minute|second|bit|moment)|(?:first|second|third|fourth|last|next|previous|other|same|above
    |following|latter|former|attached|existing)
      \ (?:one|ones|two|three|version|draft|paragraph|line|lines|sentence|section|part|bullet|item|column|row
    |word|answer|option|message|question
      |point|example|slide|page|file|commit|step|half|title)
    |(?:as|see)\ (?:above|below)|the\ (?:above|below)|above\ (?:text|code|list|one|example|table)|attached
    |again|instead\ of\ that|one\ more\ time|too\ (?:long|short|formal|big|small|much|wordy|verbose
    |complicated|vague)
    |a\ (?:bit|little|tad)\ (?:more|less)?)\b"""
)
"""Words that tie a clause to what is on the table now."""

PASSING_ACT = _pattern(
    r"""^(?:my|our)\ (?!(?:\w+\ )?(?:job|work|role|hobby|hobbies|passion|goal|aim|focus)\b).*?\b(?:is
    |are)\ (?!(?:working|studying|living|learning|training|teaching|expecting|moving|starting
    |retiring|going\ (?:blind|deaf)|being|doing)\b)(?!king|ring|spring)[a-z]+ing\b(?!\ from\b)"""
)
"""What a person or thing does at the moment: "my cat is throwing up"."""
PROBLEM = _pattern(
    r"""\b(?:crash\w*|(?<!eyesight\ is\ )(?<!hearing\ is\ )(?<!memory\ is\ )fail(?:s|ed|ing|ure)?|errors?|exceptions?
    |nothing\ (?:happens|happened|worked|works)|(?:doesn't
    |didn't|don't|won't|not)\ work(?:ing)?\b(?!\ (?:on|at|in|before|after|with|for))
    |works?\ now|broken|bugs?|stuck|hangs?|timeouts?|time\ out|warning|traceback|got\ an?|keeps?\ (?:crashing
    |failing|getting))\b"""
)
"""A report of a problem is not a statement about its author."""
THE_THING = _pattern(
    r"""\bthe\ (?:\w+\ )?(?!(?:sentences|answers|words|tests)\b)(?:header|heading|title|table|list|output|step
    |function|file|chart|text|e-?mail|letter|paragraph|sentence|section|column|row|line|test|variable|class
    |loop|legend|image
    |picture|map|plot|slide|page|document|report|result|summary|intro|introduction|conclusion|answer|question
    |word|name|graph|axis|button|form|query|script|diagram|figure|essay|article|story|poem
    |corner|colou?r|font|logo|background|menu|post|caption|footer|bottom|top|middle|left|right|rest|whole
    |first|last|next|previous|second|third|other|same)s?\b"""
)
"""A request about one thing on the table, unless a marker makes it a rule."""
POINTS_AT = _pattern(r"\b(?:it|him|her|(?<!so\ )that|those|(?<!/)them|here's|there)\b")
"""A request with one of these is about a thing named elsewhere."""

REASON = _pattern(
    r"(?:,|\ -+|\ –)\ (?:it|that|they|which|this|i|as|since|because|she|he)(?:'s|'re|'m)?\b.*$|\ "
    r"(?:because|since|as)\ (?:i|it|they|my|we|she|he|of)\b.*$"
)
COMPARATIVE = _pattern(
    r"\b(?:shorter|longer|wider|narrower|bigger|smaller|simpler|friendlier|clearer|nicer|better|more\ \w+"
    r"|less\ formal|softer|louder|tighter)\b(?!\ than)"
)

TASK_VERB = any_of(
    r"""
    fix convert summari[sz]e rewrite rephrase reword translate proofread review check debug refactor rename move
    delete remove create generate draft compose build implement compute calculate compare find look search fetch
    run rerun execute open close send email post forward upload download install buy order book transfer approve
    grant merge push deploy help try turn cut shorten expand extend fill finish continue redo undo revert update
    change edit sort paste attach schedule cancel guess summarize analyse analyze evaluate remind tell ship
    commit test plan propose suggest think read see save store add insert put make do go come wait let's need
    looking got setting
    """
)
DELIVERABLE = _pattern(
    r"\b(?:review|proofread\w*|translation|letter|e-?mail|mail|essay|quiz|poem|haiku|story|list\ of"
    r"|table\ of|summary\ of|plan|rota|script|regex|function|recipe\ (?:for|conversion)|outline|draft"
    r"|slogan|prep|worksheet|question|topic|help)\b"
)
"""A fragment with one of these orders one piece of work."""
TASK = _pattern(rf"^(?:(?:i|we)\ (?:need|want|have\ to|must|should)\b|(?:now|then|next)\b|{TASK_VERB}\b)")

IDIOM = _pattern(
    r"""^(?:never\ ?mind|no(?:,|\ time\b|pe|\ problem|\ thanks|\ thank\ you|\ worries|\ idea|\ luck
    |\ need(?!\ to\ (?:explain|repeat|mention|apologi[sz]e|sugar|remind|tell|say))|\ rush|\ way|\ doubt
    |\ one|\ hurry|\ offen[cs]e|\ comment|\ matter
      |\ wonder|\ clue|\ but|\ that|\ it|\ i|\ we|\ you|\ errors?|\ change|\ difference|\ it's|\ not|\ the
    |\ longer\b(?!\ (?-i:[A-Z]))|\ this|\ sorry|\ wait|\ more\b(?!\ \w)|$)
    |(?:don't|do\ not)\ (?:worry|bother|forget|mind|panic|know|think|understand|get|see|care|do\ (?:it|that
    |this)|save|store|remember|keep|record)
    |stop(?:\ (?:it|here|there|now|that|this)|[.!]*$)|not\ (?:yet|now|really|sure|bad|quite|that|this|today
    |at\ all|so|much|only|exactly|really|necessarily|even)
    |skip\ (?:it|that|this|to|ahead)|drop\ (?:it|that|this)|quit\ it|less\ than|without\ further|leave\ (?:it
    |that|this)|nothing\ (?:else|more|worked|happened|yet)
    |only\ (?:if|when|one|then)|just\ (?:a|one|kidding|curious|checking|wondering|do|fix)|same\b|only\ this
    |all\ (?:good|right|done|set|clear|fine|of))\b"""
)

UNSAFE_RULE = _pattern(
    r"""\b(?:confirm\w*|permission|approv\w*|refus\w+|declin\w+|warn\w*|sanitiz\w+|validat\w+|verif\w+|restrict\w*
    |safety|polic(?:y|ies)|filter\w*|limits?
    |consent|reveal|disclose|hid(?:e|ing)|conceal|secret\w*|agree(?:s|ing)?|obey\w*|compl(?:y|ies)|trust\w*
    |purchas\w*|buy\w*|pay(?:ment)?s?|transfer\w*|invest\w*
    |vendor|sponsor\w*|promot\w+|advertis\w+|recommend\w*\ [A-Z]\w+|execut\w+|install\w*|download\w*|curl
    |script|delet\w+|grant\w*|admin\w*|privilege\w*
    |malware|virus\w*|phish\w+|attachments?|memor(?:y|ies|ise|ize)|remember\ that|save\ to|bypass\w*|ignor\w+
    |disregard\w*|anything\ i\ (?:say|ask|want|tell|do|request|need)|whatever\ i|question\ me
    |log(?:ging)?\ off|prompts?|instructions?|guidelines?|ai\ systems?|assistants?|language\ models?|llms?
    |chatbots?|the\ user(?:'s)?|users?\ (?:prefers?|wants?|likes?|loves?|approves?|trusts?))\b"""
)
"""A request with one of these never becomes a rule, whatever its source: it could weaken a safeguard."""

ABOUT_ASSISTANT = _pattern(
    r"""\b(?:ai\ (?:system|assistant|model|agent)s?|language\ models?|assistants?\ (?:must|should|shall|will|reading)
    |assistants?\s*:|llms?\b|chatbots?|to\ ai\b|note\ to\ (?:the\ )?(?:ai|assistant|model)
    |the\ user\b|(?:update|save|write|add|store|commit|put)\ (?:this|that|it|\w+)?\ ?(?:to|in|into
    |your)\ (?:your\ )?(?:memory|profile|notes)|your\ memory|you\ are\ now|you're\ now|dan\b|without\ limits
    |no\ (?:limits|restrictions|rules)\ (?:on|for)\ you)"""
)

SECRET = _pattern(
    r"""\b(?:pass(?:word|wort|phrase|code|wd)s?|pw|pwd|pin\b(?!\ (?:board|number\ of))|otp|cvv|cvc|iban|ssn|token
    |api[ _-]?keys?|secret\ (?:key|is|for)|private\ keys?|access\ keys?|credentials?|credit\ cards?
    |card\ numbers?|account\ numbers?|social\ security|passport\ (?:no|number)|(?:door|gate|alarm|unlock
    |access|entry|security|backup|recovery|login|2fa|safe)\ codes?|combination\ (?:is|to|of)|log-?in\ (?:is
    |for|data)|seed\ phrase|use\ the\ key|key\ is)\b"""
)
UNREMEMBERED = _pattern(
    r"""\b(?:(?:don't|do\ not|dont|please\ don't|never)\ (?:save|store|remember|record|memori[sz]e|note|log|keep
    |write)\ (?:that|this|it|any\ of\ (?:this|that))\b|don't\ remember\ that|off\ the\ record
    |between\ (?:us|you\ and\ me)|(?:nah|and|just|please|then|now)\ forget\ (?:it|that|this|i\ said|about\ it)
    |forget\ (?:i|what\ i)\ said|delete\ that\ from\ your|not\ for\ your\ memory)"""
)
"""The user asks that the message is not remembered."""

RETRACTED = re.compile(
    r"^.{0,300}?(?:\.\.\.|\u2026|[,.!-]|\b)\s*(?:(?:oh |ah |no |hm+ )?wait,? no|no,? (?:sorry|wait)"
    r"|sorry,? no|scratch that|strike that|sorry,? i mean(?:t)?|\bi mean(?:t)"
    r"|correction(?=[:,])|make that|or rather)[,:.]?\s+",
    re.IGNORECASE,
)
"""What a speaker takes back in the same breath: "my co-founder... no sorry, my lead …"."""

ROLE_PLAY = _pattern(
    r"""\b(?:pretend\ (?:to\ be|you|that\ you|i'm|we're|i\ am)|role-?\ ?play|act\ (?:as|like)\b|you(?:'re|\ are|\ be
    |\ play)\ (?:now\ )?(?:an?|the|my)\ (?:\w+\ ){0,3}(?:interviewer|pirate|customer|client|boss|character
    |wizard|king|queen
    |robot|villain|hero|landlord|waiter|teacher|examiner|coach|knight|dragon|detective|host|recruiter|patient
    |doctor|buyer|seller|judge|lawyer|guest|parent|father|mother)
    |i(?:'m|\ am|'ll\ be|\ will\ be|\ play)\ (?:now\ )?(?:an?|the)\ \w+\ (?:and|,)\ you(?:'re|\ are|\ play)
    |let's\ (?:play|act)|play\ the\ (?:role|part)|in\ character|improv\b|dungeon|game\ master|mock\ interview
    |speak\ (?:as|like)\ an?|talk\ (?:as|like)\ an?\ (?!colleague|friend|adult|expert|human|peer|grown)
    |you\ be\ the|i'll\ be\ the|practi[sc]e\ (?:a\ )?(?:conversation|dialogue|interview)|(?:write
    |tell)\ (?:me\ )?a\ (?:story|scene|monologue|dialogue|poem|song))\b"""
)
"""The next messages of the user may be lines of a role."""
ROLE_ENDS = _pattern(
    r"""^(?:ok(?:ay)?\b|haha|lol|lmao|brilliant|great|good|nice|perfect|thanks|thank\ you|thx|cool|funny|love(?:ly|d)?
    |enough|stop|end|out\ of|back\ to|anyway|excellent|amazing|wow|super|well\ done|exit|\W*$)
    |\b(?:end\ of\ (?:role|scene)|enough\ (?:of|role|play)|out\ of\ character|stop\ (?:the\ )?(?:role|play
    |game)|back\ to\ (?:normal|work|reality)|seriously\ now)\b"""
)

OWN_LABEL = _pattern(
    r"\b(?:rules?|ground\ rules?|preferences?|context|background|intro|about\ me|me|intro|introduction"
    r"|note|notes|fyi|reminder"
    r"|style|guidelines?|convention|format|basics|details|facts?|thing|update|changes?|news|correction"
    r"|requests?|"
    r"heads[ -]?up|important|info|remember|habit|setup|stack|tools|job|work|side\ note|quick|again|also"
    r"|btw|p\.?s|edit)\b[^:]{0,60}$"
)
"""A label of the user's own statement, as in "ground rules: …"."""
FOREIGN_LABEL = _pattern(
    r"""\b(?:e-?mail|mail|letter|text|article|paragraph|log|logs|output|page|document|doc|readme|transcript|message
    |file|ticket|review|report|error|comment|post|result|response|excerpt|quote|sign|flyer|essay|poem|story
    |chapter|says?|said|wrote|writes
    |reads|asks|asked|translate|translation|proofread|rewrite|summari[sz]e|rephrase|correct|fix|improve|check
    |convert|subject|from|to|dear|example|sentence|speech|abstract|resume|cv|bio|cover|caption|title|prompt
    |input|system|user|assistant|human|ai|model
    |dialogue|lyrics|into|tweet|slogan|ad|advert|song|line|lines|paste|pasted)\b[^:]{0,40}$"""
)
