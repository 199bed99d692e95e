"""The table of statements about what the user does: tools, focus, preferences, languages and habits. Data only."""

from __future__ import annotations

from memo.consolidation.english.about_self import AM, HERE, OFTEN, WE_ARE, StatementRule, rule
from memo.consolidation.english.third_person import ADVERB
from memo.consolidation.english.vocabulary import KNOWN_TOOL, LANGUAGE, TOOL_PURPOSE, TRANSIENT_NOUN, TRANSIENT_VERB
from memo.consolidation.profile import Part

_DURABLE_HAVING = (
    r"(?:(?:an?|the|my|our|two|three|four|five|six|\d+|some|no|severe|mild|bad|poor|chronic|type|small|big"
    r"|large|little|only|young|old|limited|around|about|over|"
    r"more than|ten|twenty|several|many|few) )*"
    r"(?:\w+ )?(?:years?|months|kids?|children|sons?|daughters?|twins|toddler|baby|dogs?|cats?|puppy"
    r"|horses?|pets?|chickens|bees|wife|husband|partner|brothers?|sisters?|siblings?|"
    r"degree|master's|bachelor'?s?|phd|doctorate|diploma|licen[cs]e|certificate|background|experience|adhd"
    r"|asd|add|ocd|ptsd|asthma|diabetes|arthritis|epilepsy|"
    r"migraines?|dyslexia|dyscalculia|autism|allerg(?:y|ies)|intolerance|ibs|crohn's|\w+ disease|disease"
    r"|\w+ condition|disability|tinnitus|eyesight|hearing|"
    r"asperger's|rsi|stammer|stutter|lisp|(?:back|knees?|hips?|shoulders?|heart|eyes)|pacemaker|\w+(?:itis|osis"
    r"|opathy|algia|aemia|plegia)|\w+ (?:degeneration|palsy|dystrophy|impairment|injury)|tremor|"
    r"vertigo|cataracts?|glaucoma|hearing aids?"
    r"|prosthesis|crew|"
    r"coeliac|celiac|printer|car|bike|garden|allotment|farm|shop|business|company|agency"
    r"|studio|practice|startup|blog|channel|podcast|newsletter|employees|staff|"
    r"people|team|budget|admin rights|internet|wifi|laptop|computer|mac|macbook|pc|iphone|android|tablet"
    r"|oven|kitchen|dishwasher|freezer|house|flat|apartment|"
    r"boat|mortgage|access to|minutes|hours|hives|acres|cows|sheep|goats|hens|horses)\b"
)
_NOT_TRANSIENT = rf"(?!{TRANSIENT_VERB}\b)(?!(?:would|'d|could)\b)"


HABITS: tuple[StatementRule, ...] = (
    # tools
    rule(
        "stack",
        Part.ROLE,
        rf"^{HERE}(?:(?:I|we|my team|our (?:team|squad|company|shop|office|lab|school|department|codebase|app"
        rf"|site|product|backend|frontend|stack))) {OFTEN}(?:us(?:e|es|ing)|code|codes|deploys?|runs?|builds?"
        rf"|ships?|hosts?|tracks?|manages?|develops?|programs?|draws?|edits?|writes?|works?|stores?|keeps?"
        rf"|plans?|bills?|tests?) (?:\S+ ){{0,4}}?(?:in|on|with|using|via|through|from|to|into|for|at)? "
        rf"?(?-i:[A-Z]\w|\w*\d)\S*.*",
    ),
    rule(
        "stack",
        Part.ROLE,
        rf"^{HERE}(?:using|coding in|running on|deploying (?:to|on|with)|runs on|deployed on|hosted on|built "
        rf"(?:in|on|with)|written in) (?:(?-i:[A-Z]\w)|{KNOWN_TOOL}\b).*",
    ),
    rule(
        "stack",
        Part.ROLE,
        rf"^(?:I|we) {OFTEN}use (?!(?:an?|the|this|that|it|these|those|one|two|them|your)\b)\S.*|^(?:I|we) "
        rf"{OFTEN}use an? (?:\S+ )?(?:(?-i:[A-Z])|(?:screen reader|mac|pc|wheelchair|keyboard|trackball|kindle"
        rf"|ipad|phone|tablet|laptop|chromebook|magnifier|braille|cane|insulin|hearing)\b).*",
    ),
    rule(
        "stack",
        Part.ROLE,
        rf"^{WE_ARE}(?:on(?! (?:it|track|time|hold|board|call|fire|strike|holiday|vacation|our way|the (?:same"
        rf"|way|bus|train|plane|road|phone)|a call)\b)|using|running|building on|all on|an?|moving to"
        rf"|standardi[sz]ed on)\b.*",
    ),
    rule("stack", Part.ROLE, rf"^{AM}(?:using|running|on (?:a |an )?(?:mac|windows|linux|ubuntu|{KNOWN_TOOL})\b).*"),
    rule(
        "stack",
        Part.ROLE,
        rf"^(?:working|coding|writing|developing|deploying) (?:with|in|on) (?:{KNOWN_TOOL}\b|(?-i:[A-Z])).*",
    ),
    rule(
        "stack",
        Part.ROLE,
        rf"^(?:the |our |my )?(?:\w+ )?{TOOL_PURPOSE}(?:'s| (?:is|are|runs?|lives?|sits?|stays?|goes|go|uses?"
        rf"|works?|was))(?: now| all| still| both| currently)*(?: (?:on|in|with|at|written in|made (?:in|with)"
        rf"|done (?:in|with)|built (?:in|with|on)|hosted (?:on|at|with)|run(?:ning)? on|managed (?:in|with)"
        rf"|deployed (?:on|to|with)|stored (?:in|on)|through|via|from|called|named|version))? (?:an? |the |our "
        rf"own )?(?!\S*%)(?:(?-i:[A-Z])|\w*\d|{KNOWN_TOOL}\b).*",
    ),
    rule(
        "stack",
        Part.ROLE,
        r"^(?:tech ?stack|stack|tools?|toolchain|setup|environment|env|os|editor|ide|database|db|backend"
        r"|frontend|cloud|ci|hosting|framework|languages?|software|hardware|gear|equipment|camera)(?: is| are"
        r"|:) ?\S+",
    ),
    rule(
        "stack",
        Part.ROLE,
        rf"^(?:everything(?:'s| is| runs| lives) (?:on|in|with) (?:(?-i:[A-Z])|{KNOWN_TOOL}\b).*"
        rf"|{KNOWN_TOOL}(?: [\d.]+)? for (?:my |our |the )?(?:\w+ )?(?:{TOOL_PURPOSE}|the \w+)$"
        r")$"
        rf"|^(?:{KNOWN_TOOL}(?: [\d.]+)?(?:, (?:and )?| and | ?[+/&] ?)){{1,6}}(?:[\w.+#-]+(?: [\d.]+)?(?:, | "
        rf"\+ |$|,? and )){{0,6}}(?:no (?-i:[A-Z])\S*)?$",
    ),
    rule(
        "stack",
        Part.ROLE,
        r"^(?-i:[A-Z])[\w.+#-]+ for (?:everything|all|the|our|my|most)\b.*|^\d+ (?-i:[A-Z])\w+ (?:boxes"
        r"|servers|machines|hosts|nodes|laptops|seats|clients)\b.*",
    ),
    rule(
        "stack",
        Part.ROLE,
        r"^it's (?-i:[A-Z])[\w.+-]+(?: [\d.]+)? (?:now|these days|for us|here)\b.*|^(?:now|these days) (?:it's"
        r"|on) (?-i:[A-Z])\S+.*",
    ),
    # focus
    rule(
        "focus",
        Part.FOCUS,
        rf"^(?:{AM}|{WE_ARE})?{OFTEN}(?:working on|building|developing|writing|learning|migrating|preparing"
        rf"|designing|studying|planning|rewriting|porting|researching|training for|organi[sz]ing|renovating"
        rf"|practi[sc]ing|launching|restoring|moving to|getting into|restructuring|expanding|opening|starting"
        rf"|translating|composing|editing|brewing|growing) (?!(?:this|that|these|it|today|an? (?:\w+ )?(?:reply"
        rf"|response|mail|e-?mail|letter|message|test|regex|query|script|function|table|list|question|note"
        rf"|speech|poem|post|tweet|loop|class|small)|some|worksheets)\b)\S.*",
    ),
    rule(
        "focus",
        Part.FOCUS,
        rf"^{AM}trying to (?:learn|build|write|improve|understand|migrate|finish|lose|quit|save|become|get "
        rf"better|eat|start) (?!(?:the|this|that|it|why|how|what)\b)\S.*",
    ),
    rule(
        "focus",
        Part.FOCUS,
        r"^(?:my|our) (?:\w+ )?(?:thesis|dissertation|side project|project|startup|book|novel|blog|goal|aim"
        r"|focus|research|product|app|deadline|exam|wedding|podcast|channel|newsletter|phd|course|paper|album"
        r"|game|trip|launch) (?:is|are|focuses|covers|deals|looks|will be|starts|takes)\b.*",
    ),
    rule(
        "focus",
        Part.FOCUS,
        r"^I (?:want|need|hope|plan|aim|intend|would like) to (?:practi[sc]e|learn|improve|get better at"
        r"|become|lose weight|run a|pass)\b (?!this|it|the\b).*",
    ),
    rule(
        "focus",
        Part.FOCUS,
        r"^(?:the|my|our) (?:deadline|due date|submission|go-live|wedding|release|launch) (?:is|are) (?:on "
        r"|in |by |due )?(?:(?-i:[A-Z])|\d).*",
    ),
    # preferences
    rule(
        "preference",
        Part.AVOID,
        r"^I(?:'m| am) (?:really )?not a (?:big |huge |great )?fan of (?P<x>\S.*)",
        "Dislikes {x}",
    ),
    rule(
        "preference",
        Part.AVOID,
        rf"^I (?:{ADVERB} )*(?:hate|dislike|can't stand|cannot stand|detest|loathe|despise|can't abide|cannot "
        rf"abide|can't bear|cannot bear|abhor) (?P<x>(?!(?:it|that|this|when that)\b)\S.*)",
        "Dislikes {x}",
    ),
    rule(
        "preference",
        Part.AVOID,
        rf"^I (?:{ADVERB} )*(?:don't|do not) (?:{ADVERB} )*(?:like|enjoy|want) (?P<x>(?!(?:it|that|this|the|to "
        rf"(?!see|hear|read|get|have))\b|to (?:know|do|be|go|spend|make|change|add)\b)\S.*)",
        "Does not want {x}",
    ),
    rule(
        "preference",
        Part.PREFERENCES,
        rf"^I (?:{ADVERB} )*prefer (?!(?:it|that|this|the (?:first|second|last|other|former|latter))\b)\S.*",
    ),
    rule(
        "preference",
        Part.PREFERENCES,
        r"^I(?:'d| would) (?:much )?rather (?!not\b)\S.*|^I(?:'d| would) (?:prefer|appreciate|be grateful for"
        r"|love|like) (?!(?:it|this|that|to know|to see how|a|an|help|some|your|to (?!be (?:called|addressed))"
        r"|you to (?:fix|write|make|check|help|look|review))\b)\S.*",
    ),
    rule(
        "preference",
        Part.PREFERENCES,
        rf"^I (?:{ADVERB} )*(?:like|love|enjoy|adore) (?!(?:them|him|her|both|it|that|this|these|those|the (?:first"
        rf"|second|last"
        rf"|other|idea|new|way|look|sound)|your|how|what|to (?:know|add|see|ask))\b)\S.*",
    ),
    rule(
        "preference",
        Part.PREFERENCES,
        r"^(?:I|we) (?:want|need|expect) (?!to\b|you\b|the\b|this\b|it\b|an?\b)\S.*\b(?:every|each|always)\b.*",
    ),
    rule(
        "preference",
        Part.PREFERENCES,
        r"^(?:I|we) (?:want|need|expect) (?!(?:to|you|the|this|it|an?)\b)\S.*\b(?:every|each|always)\b.*"
        r"|^(?:I|we) (?:need|want) (?:everything|all \w+|every \w+|my \w+s|our \w+s) (?:in|to be|with|as|on) "
        r"\S.*",
    ),
    rule("preference", Part.PREFERENCES, r"^my (?:favou?rite|preferred) (?P<x>[\w ]+ (?:is|are) .+)", "Favourite {x}"),
    rule(
        "preference",
        Part.PREFERENCES,
        r"^I find (?!(?:it|this|that|the)\b)[\w' -]+ (?:tiring|annoying|fake|confusing|useful|helpful|hard"
        r"|distracting|patronising|patronizing|boring|easier|best|difficult|exhausting|irritating)\b.*",
    ),
    # languages, habits and everything else in the simple present
    rule(
        "language",
        Part.ROLE,
        rf"^(?:I|we) {OFTEN}speak \S.*|^(?:my|our) (?:mother tongue|native language|first language|second "
        rf"language)\b.*|^{LANGUAGE} is (?:not )?my .*",
    ),
    rule(
        "event",
        Part.ROLE,
        rf"^(?:I|we) {OFTEN}(?:do not |don't )?have (?:got )?{_DURABLE_HAVING}.*|^I(?:'ve| have) got "
        rf"{_DURABLE_HAVING}.*|^I have (?-i:[A-Z]{{3,}})\b.*|^I have an? (?!.*\b(?:question|problem|error|file"
        rf"|list|script|doc|assignment|interview|meeting|test|exam|bug|issue|dataset|table|project|csv|pdf|json"
        rf"|xml|columns?|rows?)\b)(?:old |new |used |small )?(?-i:[A-Z])\S*.*",
    ),
    rule(
        "habit",
        Part.ROLE,
        r"^(?:I|we) (?:can't|cannot|can not|can only) (?:\w+ )?(?:eat|drink|hear|drive|work|do mornings|deal with"
        r"|cope with|handle|see|concentrate|read"
        r"|use|afford|type|digest|tolerate|lift|walk|attend|take calls|stand|meet|travel|fly|cook|swim|write"
        r"|speak|carry|sit|hold|print|watch|listen)\b (?!(?:this|that|it|the)\b).*",
    ),
    rule(
        "habit",
        Part.ROLE,
        r"^(?:I|we) (?:know (?:nothing|little|very little|almost nothing|a lot|only a little|some|only) \S.*"
        r"|don't know (?:much|anything|any|a thing|what an? \w+ is|how to (?:code|program|cook|read))\b.*)",
    ),
    rule(
        "habit",
        Part.ROLE,
        rf"^{HERE}(?:I|we) {OFTEN}(?:don't|do not|never) (?:{ADVERB} )*(?!(?:really )?(?:know|think"
        rf"|understand|see|get|remember|care|mind|mean|have time|want|need|believe|feel|recall|trust|agree|find"
        rf"|said|asked|like|have|even|seem|expect|worry|use (?:this|that|it))\b)[a-z]+ (?!(?:this|that|it|them"
        rf"|there|yet|anything|why|how|what)\b)\S.*",
    ),
    rule(
        "habit",
        Part.ROLE,
        rf"^{HERE}(?:I|we) {OFTEN}{_NOT_TRANSIENT}(?!(?:think (?!in\b)|don't|do not|do it|do that|do this|do "
        rf"you|do have|do think|never|can't|cannot|can|have|am|\w+ed|like|love|hate|prefer|keep|also|did|didn't"
        rf"|bought|left|sold|quit|read (?:it|the|an?|some)|take the (?:first|second|last|other)|(?:go|went) "
        rf"with|use|please|call|are|is|was|were|paid|ran|got|held|kept|spent|sent|brought|fell|felt|flew|heard"
        rf"|knew|rode|slept|spoke|threw|wore|won|woke|broke|drew|drove|ate|drank|chose|began|lost|met|added"
        rf"|copied|set|put|made|wrote|sent|changed|hit|need|always|cut|ask|answer)\b)[a-z]+ (?!(?:it|this|that"
        rf"|these|them|to|if|what|why|how|here|back|there|on it|out|up|down|away|off|over|on with|from here"
        rf"|with (?:it|that|this|you)|you)\b)\S.*",
    ),
    rule(
        "habit",
        Part.ROLE,
        r"^(?:I|we) (?:always|usually|only|mostly|normally|often) (?!(?:get|see|have|need|want|wanted|thought"
        r"|think)\b)[a-z]+ (?!(?:it|this|that)\b)\S.*|^(?:I|we) keep (?:kosher|halal|bees|chickens|goats"
        r"|shabbat|sabbath)\b.*|^(?:I|we) get up\b.*|^we have (?!(?:an? )?(?:bug|problem|issue|question"
        r"|meeting|error|to|the|this|some)\b)(?:\w+ ){0,3}?(?-i:[A-Z])\S*.*",
    ),
    rule(
        "habit",
        Part.ROLE,
        rf"^(?:my |our |the )?(?:working|work|school) (?:week|days|day|hours) (?:is|are|runs?|starts?|ends?)"
        rf" (?:from |at |on )?(?:\w+days?\b|\d).*"
        rf"|^my (?!{TRANSIENT_NOUN}\b)(?!.*%)(?:\w+ )?(?:laptop|computer|machine|phone|internet|connection"
        rf"|screen|keyboard|car|bike|oven|kitchen|garden|flat|house|budget|schedule|shift|shifts|working hours"
        rf"|hours|workday|commute|level|audience|readers|students|weekend|hobby|hobbies|sport|instrument|camera"
        rf"|religion|faith|bedtime|deadline habit|mornings|evenings|salary|visa|pc|macbook|typing|spelling"
        rf"|grammar|english|french|german|spanish|maths|knowledge|experience|skills?|style|tone|voice"
        rf"|handwriting|standups?|classes|rehearsals?|training|lessons) (?:is|are|isn't|aren't|runs?|starts?"
        rf"|has|have|takes?|ends?|sucks?|reads?|prefers?)\b.*",
    ),
    rule(
        "habit",
        Part.ROLE,
        rf"^our (?!{TRANSIENT_NOUN}\b)(?:\w+ ){{0,2}}?(?:team|company|startup|codebase|budget|office|shop"
        rf"|customers|clients|audience|readers|users|products?|school|sprints?|season|menu|kitchen|farm|policy"
        rf"|fiscal year|standups?|meetings|releases?|stand-?ups?|standup|sprint|retro|timezone|brand|language"
        rf"|style guide|house style) (?:is|are|uses?|runs?|has|have|works?|starts?|ends?|speaks?|lives?|sits?"
        rf"|does|don't|doesn't|never|always|only)\b.*",
    ),
)
