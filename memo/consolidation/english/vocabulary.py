"""Lists of English words that the tables of patterns share, as fragments of regular expressions. Data only."""

from __future__ import annotations

import re


def any_of(text: str) -> str:
    """Return a group that matches any of the alternatives, which are separated by white space; `_` is a space."""
    return "(?:" + "|".join(word.replace("_", r"[ -]?") for word in text.split()) + ")"


ROLE = (
    r"(?:\b(?:\w+(?:ologist|ographer|atrician|iatrist|maker|keeper|worker|smith|master|engineer|developer)|"
    + any_of(
        """
    engineer developer dev devops tech programmer coder designer manager scientist analyst researcher student pupil
    teacher professor lecturer tutor trainer coach nurse midwife doctor physician surgeon dentist paramedic vet
    lawyer attorney solicitor barrister paralegal notary judge clerk writer editor journalist reporter author
    novelist poet blogger founder cofounder consultant advisor architect administrator admin sys_admin
    accountant bookkeeper auditor controller artist illustrator animator musician guitarist pianist drummer
    singer composer dj translator interpreter librarian archivist curator director producer lead leader head
    freelancer contractor intern trainee apprentice tester biologist chemist physicist economist geologist
    ecologist astronomer historian philosopher psychologist sociologist marketer copywriter photographer
    videographer filmmaker carpenter plumber electrician mechanic welder builder roofer mason bricklayer joiner
    farmer gardener beekeeper winemaker brewer baker chef cook barista bartender waiter waitress pilot driver
    trucker courier dispatcher sailor captain soldier officer firefighter detective therapist physiotherapist
    physio counsellor counselor pharmacist optician veterinarian caretaker caregiver carer nanny parent mum mom
    dad beginner novice retiree pensioner postdoc mathematician statistician owner maintainer cto ceo cfo coo
    cio ciso sre dba pm qa technician operator machinist planner surveyor estimator buyer seller salesperson
    salesman realtor agent broker banker trader underwriter actuary recruiter secretary receptionist assistant
    coordinator organi[sz]er volunteer priest pastor rabbi imam monk activist politician mayor diplomat
    entrepreneur shopkeeper tailor seamstress hairdresser barber stylist jeweller potter sculptor florist
    butcher fisherman forester ranger hunter miner geophysicist meteorologist seismologist linguist radiologist
    cardiologist dietitian nutritionist gamer streamer youtuber podcaster civil_servant public_servant skipper
    plasterer upholsterer glazier tiler decorator painter cobbler cleaner porter janitor fitter rigger scaffolder
    labou?rer foreman forewoman supervisor superintendent inspector constable sergeant cop policeman policewoman
    postman postwoman mailman conductor steward stewardess attendant cashier bookseller sommelier croupier concierge
    hotelier innkeeper publican restaurateur caterer grocer greengrocer fishmonger merchandiser beautician masseur
    masseuse tattooist undertaker mortician shepherd rancher grower vintner arborist agronomist horticulturist
    landscaper thatcher draughtsman lineman luthier bookbinder typesetter proofreader columnist correspondent
    presenter broadcaster actor actress dancer playwright screenwriter cellist violinist organist quant teller
    treasurer bursar fundraiser campaigner lobbyist councillor senator aide magistrate bailiff usher chaplain vicar
    nun registrar curate headteacher principal dean warden childminder doula hygienist phlebotomist anaesthetist
    optometrist obstetrician geneticist botanist zoologist immunologist oceanographer hacker pentester roboticist
    undergrad(?:uate)? postgrad(?:uate)? freshman sophomore sixth-former candidate fellow scholar cadet veteran
    housewife househusband widow widower grandmother grandfather valet tutor handyman groundsman zookeeper
    dockworker stevedore trainer sexton verger notary translator seafarer practitioner clinician deckhand bosun
    stoker train_guard
    signaller paediatrician neurologist oncologist podiatrist osteopath chiropractor carpet_layer lift_engineer
    """
    )
    + r")s?)"
)
"""The last word of an occupation."""

RELATION = any_of(
    r"""
    wife husband hubby spouse partner fianc[eé]e? girlfriend boyfriend gf bf ex daughters? sons? child(?:ren)? kids?
    baby toddler twins? little_one
    (?:step|half|grand|god|foster)?_?(?:daughter|son|child|children|mother|father|brother|sister)s? mother
    father mum mom mam dad papa parents? brothers? sisters? siblings? uncle aunt(?:ie)? cousin nephew niece
    grandma grandpa granny nan gran in-laws? (?:mother|father|brother|sister)-in-law family friend best_friend
    flatmate roommate housemate colleagues? co-?workers? teammates? boss supervisor line_manager manager
    (?:team|engineering|tech|project|\w+)?_?lead deputy intern apprentice assistant clerk secretary co-?founder
    eldest oldest youngest other_half better_half missus mate lodger
    co-?author business_partner mentor advisor tutor coach students? pupils? clients? customers? patients?
    landlord landlady tenant designer accountant doctor therapist carer crew staff drivers? volunteers? editor
    publisher agent dogs? cats? puppy kitten horse pony rabbit parrot hamster guinea_pig pet
    """
)
FAMILY = any_of(
    """
    wife husband hubby spouse partner fianc[eé]e? girlfriend boyfriend daughter son child kid baby little_one
    granddaughter grandson mother father mum mom dad brother sister niece nephew grandma grandpa dog cat
    """
)

LANGUAGE = any_of(
    """
    English German French Spanish Italian Portuguese Dutch Flemish Polish Japanese Chinese Mandarin Cantonese
    Korean Russian Ukrainian Turkish Swedish Danish Norwegian Finnish Icelandic Estonian Latvian Lithuanian
    Czech Slovak Slovene Croatian Serbian Bosnian Bulgarian Romanian Hungarian Greek Hindi Urdu Bengali Punjabi
    Tamil Telugu Marathi Gujarati Malayalam Kannada Sinhala Nepali Arabic Hebrew Persian Farsi Kurdish Swahili
    Amharic Yoruba Igbo Hausa Zulu Afrikaans Vietnamese Thai Indonesian Malay Tagalog Filipino Welsh Irish
    Gaelic Basque Catalan Galician Albanian Armenian Georgian Latin Esperanto
    """
)
NATIONALITY = (
    rf"(?:{LANGUAGE}|American|British|Scottish|Canadian|Australian|Mexican|Brazilian|Austrian|Swiss|Belgian"
    rf"|Indian)"
)

UNIT = any_of(
    r"""
    metric imperial SI_units SI units? celsius fahrenheit kelvin °C °F kilomet(?:er|re)s? km miles?
    met(?:er|re)s? cm mm millimet(?:er|re)s? centimet(?:er|re)s? inch(?:es)? feet grams? kilos? kilograms? kg
    lbs? ounces oz stones? lit(?:er|re)s? gallons? ml cups? tablespoons? calories kcal kj joules watts kwh
    euros? dollars? usd eur gbp pounds? sterling francs? chf yen jpy yuan rmb rupees? inr kron(?:er|or|a)? sek
    nok dkk z[lł]oty pln pesos? reais brl rand naira shillings? won lira forints? currency currencies utc gmt
    cet cest est pst eastern_time pacific_time iso(?:_?8601)? 24_?h(?:ours?)? 12_?h(?:ours?)? am/pm a4 us_letter
    dd[./-]mm\S* mm[./-]dd\S* yyyy\S* decimal_comma decimal_point knots hectopascals? hpa psi bars rand dirhams?
    shekels? baht ringgit rubles?
    lei dong cedis? taka lev pesetas? rupiah pesos? acres? hectares? tonnes? tons pints? lakhs? crores? nautical_miles
    feet_and_inches pounds_and_ounces stone_and_pounds day-month-year year-month-day military_time mph kph km/h
    """
)
MEASURED = any_of(
    """
    dates? times? timestamps? clock prices? amounts? sums? money costs? units? measurements? distances? lengths?
    heights? weights? temperatures? temps? volumes? sizes? speeds? pressures? numbers? figures? decimals?
    quantities areas? fuel energy phone_numbers? addresses time_?zones? paper currency weather percentages? ratios?
    doses? dosages? scores? salaries budgets?
    fees rates coordinates wind altitudes? ages yields? grades? invoices rent wages durations? intervals weekdays
    """
)
STYLE = any_of(
    r"""
    answers? repl(?:y|ies) responses? explanations? messages? texts? short brief concise terse succinct compact
    crisp detailed in-depth long(?:er)?_than lengthy verbose formal informal casual friendly chatty polite
    direct blunt honest plain simple easy_words bullets? bullet_points? lists? numbered tables? charts?
    diagrams? prose headings? headers? headlines? titles? title_case sentence_case paragraphs? sentences? words?
    lines? line_width line_length columns? characters pages? tl;?dr summary summaries conclusions? examples?
    emojis? emoticons jargon buzzwords tone voice register slang spelling grammar punctuation commas?
    semicolons? colons? dashes em_dash(?:es)? hyphens? apostrophes? quotes quotation_marks exclamation_marks?
    exclamation_points? question_marks? contractions abbreviations acronyms italics? bold underlined? capitals?
    caps upper_?case lower_?case camel_?case snake_?case kebab-case markdown latex html plain_text rich_text
    code_blocks? code_first comments? docstrings? type_hints? typed types? indent(?:ation|s)? tabs? spaces
    braces brackets diffs? patch(?:es)? snippets? one-liners? steps? step_by_step citations? cite references?
    referencing sources? footnotes? bibliography apa mla harvard chicago vancouver ieee fonts? font_size
    large_print sans-serif serif contrast captions? subtitles alt_text colou?rs? dark_mode light_mode greetings?
    salutations? sign-?offs? signature subject_lines? hashtags? pros_and_cons comparisons? options? questions?
    disclaimers? warnings? caveats? apologies flattery praise compliments? small_talk pleasantries fluff filler
    preamble intros? introductions? recaps? jokes? puns? humou?r sarcasm metaphors? analog(?:y|ies) cliches
    clichés hedging feedback criticism sugar-?coating passive_voice active_voice first_person second_person
    names? notation hex binary rounding significant_figures decimals? decimal_places present_tense past_tense
    imperative samples? code_samples? snippets files? hints? row_by_row
    worksheets? drawings? patterns? runbooks? commands? answer_first headlines? subheadings? keywords latin_names
    commit_messages? tests? test_first pseudocode variable_names? identifiers american british
    uk_english us_english recipes? portions? servings?
    """
)
TOOL_PURPOSE = any_of(
    r"""
    CI CD CI/CD pipelines? builds? warehouse data_warehouse databases? DB datastore back_?end front_?end API
    editor IDE stack repos? repository codebase code monorepo blog site website web_?site docs documentation
    tickets? issues tracker monitoring alerting logging logs hosting host deploy(?:ment)?s? infra(?:structure)?
    cloud orchestration cache queue OS operating_system laptop machine computer desktop workstation phone tablet
    shell terminal framework figures? plots? charts? slides graphics models? rendering accounting bookkeeping
    payroll bookings? invoic(?:es|ing) CRM TMS ERP CMS POS HR_system newsletter e?-?mails? mail payments?
    software app system tool platform program auth(?:entication)? tests? test_suite styling styles ORM build_system
    rota calendar notes wiki chat
    messaging office shop store till firm company team squad department app product game engine server servers
    cluster network router camera lens oven guitar bike car van printer spreadsheets? inventory schedul(?:e|ing)
    scripts? automation version_control source_control package_manager linter formatter typesetting manuscript
    thesis
    """
)
KNOWN_TOOL = any_of(
    r"""
    python\d* javascript typescript java kotlin scala rust golang ruby php perl swift elixir erlang haskell
    clojure c\+\+ c# f# lua julia matlab cobol fortran node(?:\.?js)? deno bun react vue svelte angular
    next\.?js nuxt django flask fastapi rails laravel spring htmx tailwind bootstrap postgres(?:ql)? mysql
    mariadb sqlite mongodb redis kafka rabbitmq cassandra elasticsearch snowflake bigquery redshift dbt airflow
    spark pandas polars numpy scipy pytorch tensorflow jax docker podman kubernetes k8s helm terraform ansible
    puppet nix aws gcp azure heroku netlify vercel cloudflare hetzner github gitlab bitbucket jenkins circleci
    buildkite grafana prometheus datadog sentry jira linear trello asana notion confluence slack discord teams
    figma sketch photoshop illustrator indesign lightroom blender unity unreal godot gdscript vim neovim emacs
    vscode vs_code intellij pycharm zed xcode ubuntu debian fedora arch nixos linux macos windows bash zsh fish
    excel powerpoint latex lualatex overleaf zotero obsidian ggplot2? stm32 zephyr arduino esp32 raspberry_pi
    ruff uv pytest mypy npm pnpm yarn vite webpack cargo gradle maven bazel cmake grpc graphql supabase firebase
    wordpress shopify hugo jekyll salesforce hubspot sap quickbooks xero datev autocad revit rhino grasshopper
    kali burp wireshark qgis arcgis stata spss rstudio quarto tidyverse laravel livewire symfony vue\.?js ember astro
    sveltekit clickhouse duckdb dynamodb couchdb neo4j memcached pulumi vagrant nomad argocd openshift
    forgejo gitea bazaar svn mercurial teamcity opentelemetry loki jaeger honeycomb zabbix nagios
    pagerduty youtrack airtable clickup freshbooks procreate affinity inkscape gimp krita
    freecad sketchup archicad davinci_resolve final_cut pro_tools cubase musescore sibelius scrivener
    ulysses logseq roam onenote evernote google_(?:docs|sheets|slides|drive) libreoffice wordperfect helix sublime
    notepad\+\+ android_studio jetpack_compose flutter dart swiftui kmp qt gtk wpf blazor asp\.net \.net nginx
    caddy traefik apache haproxy proxmox truenas openwrt home_assistant moodle google_classroom sqlc pg\d+ k3s
    rancher power_bi tableau metabase superset matplotlib seaborn plotly ggplot shiny streamlit jupyter
    solidworks fusion_360 ableton logic_pro
    """
)
"""Names that are enough to recognise a bare list of tools, such as "python 3.12, ruff, uv"."""

STATE = any_of(
    r"""
    vegetarian vegan pescatarian retired self-employed freelanc(?:e|ing) unemployed left-handed right-handed
    dyslexic dyscalculic deaf blind colou?r_?blind hard_of_hearing partially_sighted autistic neurodivergent
    diabetic pregnant (?:\w+_)?intolerant allergic celiac coeliac bilingual trilingual married single divorced
    widowed muslim jewish hindu christian catholic buddhist sikh teetotal sober asthmatic epileptic
    near-?sighted short-?sighted far-?sighted anaemic non-native remote fully_remote part-time full-time on_call
    on_an?_(?:\w+_)?(?:diet|visa|contract|budget|scholarship) in_charge responsible_for fluent new_to bad_at
    terrible_at good_at bad_with
    terrible_with good_with based located responsible_for \d\d_years?_old disabled visually_impaired
    (?:a_)?native ambidextrous tone_deaf
    """
)
"""What a person is for long, beside a role."""
CONDITION = any_of(
    r"""
    adhd add ocd ptsd asthma dyslexia dyscalculia dyspraxia migraines? arthritis epilepsy (?:type_\d_)?diabetes
    tinnitus autism ibs crohn's rsi carpal_tunnel insomnia anxiety parkinson's ms fibromyalgia
    """
)
"""What a person has rather than is, as a word that is enough alone."""

TOOL_KINDS: tuple[tuple[str, str], ...] = (
    ("editor", any_of("vim neovim nvim emacs vscode vs_code helix zed sublime intellij pycharm kakoune nano")),
    ("tracker", any_of("jira linear trello asana youtrack basecamp clickup redmine bugzilla")),
    ("ci", any_of("jenkins circleci circle_ci buildkite travis teamcity gitlab_ci github_actions")),
    ("database", any_of("mysql mariadb postgres(?:ql)? sqlite mongodb cockroachdb dynamodb")),
    ("warehouse", any_of("snowflake bigquery redshift databricks duckdb clickhouse")),
    ("cloud", any_of("aws gcp azure hetzner digitalocean heroku fly\\.io")),
    ("chat", any_of("slack teams mattermost zulip")),
    ("notes", any_of("notion obsidian evernote onenote logseq roam")),
    ("books", any_of("quickbooks xero freshbooks datev")),
    ("shell", any_of("bash zsh nushell")),
    ("system", any_of("ubuntu debian fedora arch nixos opensuse gentoo")),
)
"""Tools of which a person uses one at a time, by kind. A change to one replaces the others of its kind."""

TRANSIENT_VERB = any_of(
    """
    want need guess hope mean see know understand get wonder believe suppose feel remember forgot forget try
    find ask say tell agree disagree doubt notice realise realize recall imagine expect wish thank apologise
    apologize appreciate will would could should might may must shall can let paste attach send share got had
    was were did went saw made took gave found said told thought came left_out am be been being wait bet assume
    regret promise swear just choose pick vote go_with seem look sound confirm trust accidentally keep_getting
    """
)
"""Verbs that say what happens now rather than what is usually true."""

TRANSIENT_NOUN = any_of(
    """
    question problem issue bug error point bad guess idea understanding draft paragraph text sentence mistake
    apologies fault code build test tests script query output input result results log logs last first next
    previous message request prompt answer plan thought thoughts concern goodness god word turn bet file
    function essay cover_letter order attempt PR branch commit hope
    """
)
PAST_VERB = any_of(
    """
    moved relocated joined quit left started switched migrated changed became retired graduated finished
    completed got_promoted got_hired got_married got_divorced got_diagnosed dropped ditched replaced sold
    stopped gave_up grew_up came_from ported adopted opened founded launched upgraded transferred settled
    swapped taken_up took_up gone_back renamed got_an?_new_(?:job|position|role|gig|dog|cat|puppy)
    got_an?_(?:job|promotion|dog|cat|puppy)
    """
)
"""Verbs of events that leave a lasting result."""

COMMON_WORDS = frozenset(
    re.findall(
        r"[\w']+",
        """
        about above after again against all also always another any anything are around ask asked
        back because been before being below best better between both but call can change code come
        could data did different does doing done down during each easy else end error even every
        everything example fact file files find first fix for from full function get give going good
        great had has have having hello help here hey how idea into issue its just keep know last
        less let like line list little long look looking lot made make makes many maybe mean message
        might more most much must name need needs never new next nice nothing now number off often
        okay old once one only open other our out over own part people perhaps place please point
        possible problem put question quite rather really right run running said same say see seem
        seems send set several shall short should show shows side simple since small some someone
        something sometimes soon sorry start step still stop such sure take tell test text than
        thank thanks that the their them then there these they thing things think this those though
        thought through time today together told tomorrow too try trying turn two under understand
        until update upon use used user using value very via want wanted was way week well went were
        what when where whether which while who whole whom why will with within without won't word
        words work works would write written wrong year yes yesterday yet you your yours don't i'm
        it's i've i'll can't that's there's doesn't isn't didn't we're let's what's you're assistant
        answer answers reply response instruction instructions ignore system prompt remember
        previous important
        """,
    )
)
"""Words that do not name a subject, although they begin with a capital inside a sentence."""
