use super::*;

fn parse(text: &str) -> Result<Config, String> {
    super::parse(text, Path::new("weir.toml")).map_err(|e| e.to_string())
}

/// A configuration with a class with this `match`.
fn matching(selectors: &str) -> String {
    format!("{LINK}[[class]]\nname = \"a\"\nmatch = {selectors}\n")
}

fn images(text: &str) -> String {
    format!("{LINK}[images]\n{text}\n")
}

fn upstream(text: &str) -> String {
    images(&format!("budget = \"1GiB\"\n[[images.upstream]]\n{text}"))
}

fn runtime(text: &str) -> String {
    images(&format!("budget = \"1GiB\"\n[images.runtime]\nbudget = \"1GiB\"\n{text}"))
}

/// A configuration of a node that asks its peers.
fn peers(text: &str) -> String {
    let peer =
        "store = \"peer\"\nlisten = \"10.0.0.7:5051\"\nsecret_file = \"/s\"\nredis = \"redis://10.0.0.5\"";
    images(&format!("budget = \"1GiB\"\n[images.pop]\nnode = \"n\"\n{peer}\n{text}"))
}

const LINK: &str = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n";

#[test]
fn the_shortest_configuration_names_a_device_and_its_capacity() {
    let config = parse(LINK).unwrap();
    assert_eq!(config.link.capacity, BitRate::mbit(100));
    assert_eq!(config.discover.docker, Some("/run/docker.sock".into()));
    assert_eq!(config.discover.netns, Some(vec!["*".to_owned()]));
    assert_eq!(config.link.allocator, AllocatorKind::WaterFilling);
}

#[test]
fn the_installed_configuration_is_good_on_any_link_once_it_is_filled_in() {
    let text = include_str!("../../../../packaging/weir.toml");
    let why = parse(text).unwrap_err();
    assert!(why.contains("fill in device and capacity"), "{why}");
    for capacity in ["64kbit", "1mbit", "40mbit", "10gbit"] {
        let filled = text
            .replace("# device = \"eth0\"", "device = \"wwan0\"")
            .replace("# capacity = \"95mbit\"", &format!("capacity = \"{capacity}\""));
        let config = parse(&filled).unwrap();
        assert!(config.classes.is_empty() && config.groups.is_empty());
        assert_eq!((config.link.device.as_str(), &config.discover), ("wwan0", &Discover::default()));
    }
}

/// The refusal names the section that does not fit, with the numbers.
#[test]
fn minima_of_one_file_that_do_not_fit_together_are_refused() {
    let interface = |name: &str, min: u64| {
        format!("[[class]]\nname = \"{name}\"\ninterface = \"veth-{name}\"\nmin = \"{min}mbit\"\n")
    };
    for (text, words) in [
        // Absent classes count too.
        (interface("a", 60) + &interface("b", 60), &["[[class]] b", "60mbit of the 95mbit", "35mbit are free"][..]),
        ("[host]\nmin = \"60mbit\"\n[default]\nmin = \"60mbit\"\n".into(), &["[default]", "35mbit are free"]),
        ("[[group]]\nname = \"g\"\nmin = \"96mbit\"\n".into(), &["[[group]] g", "95mbit are free"]),
        (
            "[[group]]\nname = \"g\"\nmin = \"9mbit\"\n[[class]]\nname = \"a\"\ngroup = \"g\"\nmin = \"10mbit\"\n".into(),
            &["[[class]] a", "group g has a minimum of 9mbit"],
        ),
        (
            "[[group]]\nname = \"g\"\nmax = \"9mbit\"\n[[class]]\nname = \"a\"\ngroup = \"g\"\nmin = \"10mbit\"\n".into(),
            &["[[class]] a", "group g has a maximum of 9mbit"],
        ),
        (
            "[defaults]\nmax = \"5mbit\"\n[[class]]\nname = \"a\"\nmin = \"8mbit\"\n".into(),
            &["[[class]] a with [defaults]", "minimum 8mbit is above maximum 5mbit"],
        ),
        ("[defaults]\nmin = \"101mbit\"\n".into(), &["[defaults]: its minimum of 101mbit", "the whole link has 100mbit"]),
        (
            "[agreements]\nshare = \"additive\"\n[[class]]\nname = \"a\"\nmin = \"6mbit\"\n".into(),
            &["[[class]] a", "group other has a maximum of 5mbit"],
        ),
    ] {
        let why = parse(&format!("{LINK}{text}")).unwrap_err();
        assert!(words.iter().all(|word| why.contains(word)), "{text}\n---\n{why}");
    }
    parse(&format!("{LINK}{}{}", interface("a", 60), interface("b", 35))).unwrap();
}

#[test]
fn each_example_is_a_configuration_or_an_offer() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut read = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if name == "offer" {
                <weir_agree::Offer as weir_agree::Document>::read(&text, weir_agree::Language::Toml).unwrap();
            } else {
                parse(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
            }
            read.push(name);
        }
    }
    assert!(read.len() >= 5, "{read:?}");
}

#[test]
fn the_example_that_ships_is_valid() {
    let text = include_str!("../../../../docs/weir.toml");
    let config = parse(text).unwrap();
    assert!(config.classes.len() >= 3 && config.groups.len() == 1);
    // Agreements are off in the example. Its commented section is valid too.
    let (_, section) = text.split_once("# [agreements]").unwrap();
    let uncommented: String = format!("# [agreements]{section}")
        .lines()
        .map(|line| format!("{}\n", line.trim_start().trim_start_matches("# ")))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase() || c == '['))
        .filter(|line| line.starts_with('[') || line.contains(" = "))
        .collect();
    let agreements = parse(&format!("{LINK}{uncommented}")).unwrap().agreements.unwrap();
    assert_eq!(agreements.templates.len(), 1);
    // The section about images is valid too.
    let images = parse(&format!("{LINK}{uncommented}")).unwrap().images.unwrap();
    assert_eq!((images.upstreams.len(), images.listen.port()), (2, 5050));
    assert_eq!(images.upstreams[0].redirects.len(), 1);
    assert_eq!(images.pop.map(|pop| pop.store), Some(weir_image::PopStore::Peer));
    let runtime = images.runtime.unwrap();
    assert_eq!((runtime.budget.0, runtime.dry_run, runtime.keep_new_s), (20 << 30, true, 600));
}

/// Docker's images have a budget only where the configuration gives one, and then a dry run first.
#[test]
fn budget_of_docker_is_off_by_default_and_a_dry_run_at_first() {
    assert_eq!(parse(&images("budget = \"1GiB\"")).unwrap().images.unwrap().runtime, None);
    let runtime = |text: &str| parse(&runtime(text)).unwrap().images.unwrap().runtime.unwrap();
    assert!(runtime("").dry_run && runtime("").pins.is_empty());
    assert_eq!(runtime("").policy, weir_cache::PolicyKind::Auto);
    assert!(!runtime("dry_run = false").dry_run);
}

#[test]
fn every_bad_value_is_refused_and_named() {
    for (text, want) in [
        ("", "missing field `link`"),
        ("[link]\ndevice = \"eth0\"\n", "[link] capacity: 0bit is not between"),
        ("[link]\ncapacity = \"95mbit\"\n", "fill in device and capacity"),
        ("[link]\ndevice = \"eth0\"\ncapacity = \"-5mbit\"\n", "a rate is not negative"),
        ("[link]\ndevice = \"eth0\"\ncapacity = \"0\"\n", "[link] capacity: 0bit is not between"),
        ("[link]\ndevice = \"eth0\"\ncapacity = \"999999tbit\"\n", "more than 10000gbit"),
        ("[link]\ndevice = \"a/b\"\ncapacity = \"1mbit\"\n", "not the name of an interface"),
        (
            &format!("{LINK}[[class]]\nname = \"a\"\ninterface = \"a-name-too-long0\"\n"),
            "[[class]] a interface: `a-name-too-long0` is not the name",
        ),
        (&format!("{LINK}[[class]]\nname = \"a\"\ninterface = \"\"\n"), "1 to 15 bytes without space"),
        (&format!("{LINK}[[class]]\nname = \"a\"\ninterface = \"..\"\n"), "`..` is not the name"),
        (&format!("{LINK}reservable = 1.5\n"), "cannot promise 1.5 of a link"),
        (&format!("{LINK}delay_ms = 0\n"), "[link] delay_ms: 0 is not"),
        (&format!("{LINK}queues = 0\n"), "[link] queues: 0 is not"),
        (&format!("{LINK}form = \"paper\"\n"), "[link] form: engine = \"bpf-credit\" alone has forms"),
        (
            &format!("{LINK}engine = \"bpf\"\nform = \"repaired\"\n"),
            "[link] form: engine = \"bpf-credit\" alone",
        ),
        (&format!("{LINK}engine = \"bpf-credit\"\nform = \"literal\"\n"), "unknown value `literal`"),
        (&format!("{LINK}engine = \"bpf-credit-paper\"\n"), "there is no engine `bpf-credit-paper`"),
        (&format!("{LINK}speed = 3\n"), "unknown field `speed`"),
        (&format!("{LINK}[api]\nlisten = \"9798\"\n"), "invalid socket address"),
        (&format!("{LINK}[api]\nlisten = \"127.0.0.1:0\"\n"), "[api] listen: port 0 is no port"),
        (&format!("{LINK}[api]\ntoken = \"x\"\n"), "unknown field `token`"),
        (
            &format!("{LINK}[api]\nlisten = \"127.0.0.1:5050\"\n[images]\nbudget = \"1GiB\"\n"),
            "[api] listen: 127.0.0.1:5050 is the address of [images]",
        ),
        (&format!("{LINK}engine = \"cbq\"\n"), "there is no engine `cbq`: auto, "),
        (&format!("{LINK}local = [\"10.0.0.0/99\"]\n"), "cannot read `10.0.0.0/99` as a network"),
        (&format!("{LINK}exempt = [\"lan\"]\n"), "cannot read `lan` as a network"),
        (&format!("{LINK}exempt = [\"0.0.0.0/0\"]\n"), "`0.0.0.0/0` is each destination"),
        (&format!("{LINK}[[class]]\nname = \"a\"\nweight = 0\n"), "cannot use `0` as a weight"),
        (&format!("{LINK}[[class]]\nname = \"a\"\nweight = -1\n"), "cannot use `-1` as a weight"),
        (
            &format!("{LINK}[[class]]\nname = \"a\"\nmin = \"5mbit\"\nmax = \"4mbit\"\n"),
            "minimum 5mbit is above maximum 4mbit",
        ),
        (&format!("{LINK}[[class]]\nname = \"a\"\nmax = \"0\"\n"), "would cut the class off"),
        (&format!("{LINK}[[class]]\nname = \"a\"\n[[class]]\nname = \"a\"\n"), "there twice"),
        (&format!("{LINK}[[class]]\nname = \"a\"\ngroup = \"g\"\n"), "no [[group]] `g`"),
        (&format!("{LINK}[[class]]\nname = \"host\"\n"), "weir's own"),
        (&format!("{LINK}[[class]]\nname = \"a b\"\n"), "not a name"),
        (&format!("{LINK}[discover]\ndocker = 3\n"), "true, false or the path"),
        (
            &format!("{LINK}[discover]\nincus = true\nlxc = false\n"),
            "[discover] incus: [discover] lxc is false",
        ),
        (&matching("{}"), "it matches everything: name at least one of container"),
        (&matching("3"), "a selector such as { protocol"),
        (&matching("{ prot = \"tcp\" }"), "unknown field `prot`"),
        (&matching("{ protocol = \"icmp\" }"), "unknown value `icmp`"),
        (&matching("{ port = 0 }"), "cannot read `0` as ports: write 1 to 65535"),
        (&matching("{ port = -1 }"), "cannot read `-1` as ports"),
        (&matching("{ port = 65536 }"), "cannot read `65536` as ports"),
        (&matching("{ port = \"90-80\" }"), "cannot read `90-80` as ports"),
        (&matching("{ port = true }"), "a port such as 8081 or a range"),
        (&matching("{ dscp = 64 }"), "dscp 64 has more than six bits"),
        (&matching("{ remote = \"10.1.2.3/8\" }"), "has bits behind its prefix: write 10.0.0.0/8"),
        (&matching("{ remote = \"10.0.0.0/33\" }"), "invalid IP address syntax"),
        (&matching("{ local = \"::/0\", remote = \"10.0.0.0/8\" }"), "they are of two IP versions"),
        (&matching("{ container = \"a b\" }"), "`a b` is not a name"),
        (&matching("{ container = \"a\" }"), "class a has a match itself"),
        (&matching("[{ port = 1 }, { port = 1 }]"), "class a has the same"),
        (&matching("{ port = 1 }\ninterface = \"v1\""), "cannot be combined with interface"),
        (&format!("{LINK}[agreements]\nreservable = 0.95\n"), "`together = 1.0` allows it"),
        (&format!("{LINK}[agreements]\noversubscription = 1.0\n"), "cannot oversubscribe 1 times"),
        (&format!("{LINK}[agreements]\nshare = \"fair\"\n"), "unknown value `fair`"),
        (&format!("{LINK}[agreements]\nother = 0\nother_is_ceiling = true\n"), "wants a part"),
        (&format!("{LINK}[agreements]\nmost = 0\n"), "most: 0 is not between"),
        (&format!("{LINK}[agreements]\nreserve = 0.5\n"), "unknown field `reserve`"),
        (&format!("{LINK}[images]\n"), "missing field `budget`"),
        (&images("budget = \"1MiB\""), "[images] budget: 1MiB is less than 64MiB"),
        (&images("budget = \"1GiB\"\nlisten = \"0.0.0.0:5050\""), "is not a loopback address"),
        (&images("budget = \"1GiB\"\ndirectory = \"x\""), "x is not an absolute path"),
        (&images("budget = \"1GiB\"\nconnections = 0"), "0 is not between 1 and 65536"),
        (&images("budget = \"1GiB\"\nmax_rate = \"10kbit\""), "max_rate: 10kbit is less than 1mbit"),
        (&images("budget = \"1GiB\"\nscrub_days = 0"), "scrub_days: 0 is not between 1 and 365"),
        (&images("budget = \"1GiB\"\nsize = 1"), "unknown field `size`"),
        (&images("budget = \"1GiB\"\n[images.runtime]"), "missing field `budget`"),
        (
            &images("budget = \"1GiB\"\n[images.runtime]\nbudget = \"1MiB\""),
            "[images.runtime] budget: 1MiB is less than 64MiB",
        ),
        (&runtime("policy = \"clock\""), "unknown value `clock`"),
        (&runtime("pins = [\"a b\"]"), "[images.runtime] pins: cannot read `a b` as an image"),
        (
            &runtime("docker = \"docker.sock\""),
            "[images.runtime] docker: docker.sock is not an absolute path",
        ),
        (&runtime("force = true"), "unknown field `force`"),
        (
            &runtime("[discover]\ndocker = false"),
            "[images.runtime] docker: [discover] docker is false, so name Docker's socket here",
        ),
        (&upstream("registry = \"https://x\""), "cannot read `https://x` as a registry"),
        (&upstream("registry = \"x.y\"\nurl = \"x.y\""), "cannot read url `x.y`"),
        (&upstream("registry = \"x.y\"\nurl = \"http://x.y/path\""), "without a path"),
        (&upstream("registry = \"x.y\"\nusername = \"a\""), "username and password_file go together"),
        (
            &upstream("registry = \"x.y\"\nusername = \"a\"\npassword_file = \"/f\""),
            "say which repositories everybody on this node may have",
        ),
        (&upstream("registry = \"x.y\"\nredirects = [\"http://x\"]"), "cannot read `http://x` as a registry"),
        (&peers("networks = [\"10.0.0.1/8\"]"), "cannot read `10.0.0.1/8` as a network"),
        (
            &peers("networks = [\"10.1.0.0/16\"]"),
            "[images.pop] networks: 10.0.0.7 of listen is in none of them",
        ),
        (&upstream("registry = \"x.y\"\n[[images.upstream]]\nregistry = \"x.y\""), "there twice"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(want), "{text}\n---\n{error}");
    }
}

/// The section can also express the paper's division.

#[test]
fn error_of_a_configuration_has_no_part_of_a_credential() {
    let images = |lines: &str| format!("{LINK}[images]\nbudget = \"1GiB\"\n{lines}");
    let (proxy, pop) = ("proxy = \"", "[images.pop]\nname = \"a\"\nstore = \"shared-dir\"\nredis = ");
    for (text, want) in [
        (images(&format!("{proxy}http://acme:s3c/ret@p.example:3128\"")), "http://(hidden)@p.example:3128"),
        (images(&format!("{proxy}http://acme:s3c#ret@p.example:3128\"")), "[images] proxy: cannot read"),
        (images(&format!("{proxy}http://acme:s3c?ret@p.example:3128\"")), "%2F for `/`"),
        (images(&format!("{proxy}http://acme:s3c@ret@p.example:3128\"")), "%40 for `@`"),
        (images(&format!("{proxy}acme:s3cret@p.example:3128\"")), "(hidden)@p.example:3128"),
        (images(&format!("{proxy}http://p.example:port\"")), "cannot read `http://p.example:port`"),
        (images(&format!("{pop}redis://:s3cret@r.example")), "redis = redis://(hidden)@r.example"),
        (images(&format!("{pop}\"http://acme:s3cret@r.example\"")), "`http://(hidden)@r.example`"),
        (images("password = \"s3cret\""), "password = \"(hidden)\""),
        (
            images("[[images.upstream]]\nregistry = \"x.y\"\nurl = \"https://acme:s3cret@x.y\""),
            "cannot read url `https://(hidden)@x.y`",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(want), "{text}\n---\n{error}");
        for part in ["acme", "s3c", "ret@"] {
            assert!(!error.contains(part), "{text}\n---\n{error}");
        }
    }
    for good in [
        "http://p.example:3128",
        "http://acme:s3c%2Fret@p.example:3128/",
        "http://[::1]:3128",
        "",
        "http://p",
    ] {
        let text = images(&format!("{proxy}{good}\""));
        assert!(parse(&text).is_ok(), "{text}: {:?}", parse(&text));
    }
}

#[test]
fn agreements_are_off_without_their_section() {
    assert_eq!(parse(LINK).unwrap().agreements, None);
    let config = parse(&format!("{LINK}[agreements]\n")).unwrap();
    let agreements = config.agreements.as_ref().unwrap();
    let limits = agreements.limits(&config.link, BitRate::ZERO).unwrap();
    assert_eq!((limits.reservable(), limits.other()), (BitRate::mbit(90), BitRate::mbit(5)));
    assert_eq!((agreements.ceiling(&config.link), config.allocator()), (None, AllocatorKind::WaterFilling));

    let paper = "[agreements]\nreservable = 0.95\nother = 0.05\ntogether = 1.0\nshare = \"additive\"\n";
    let config = parse(&format!("{LINK}{paper}")).unwrap();
    let agreements = config.agreements.as_ref().unwrap();
    assert_eq!(agreements.ceiling(&config.link), Some(BitRate::mbit(5)));
    assert_eq!(agreements.promisable(&config.link), BitRate::mbit(100));
    assert_eq!(config.allocator(), AllocatorKind::Additive);
}

#[test]
fn docker_and_namespaces_can_be_switched_off_or_narrowed() {
    let config = parse(&format!("{LINK}[discover]\ndocker = false\nnetns = [\"web*\"]\n")).unwrap();
    assert_eq!(config.discover.docker, None);
    assert_eq!(config.discover.netns, Some(vec!["web*".to_owned()]));
}

/// A configuration that shares the download. (100 Mbit/s up, 50 down.)
fn shared(sections: &str) -> Result<Config, String> {
    parse(&format!("{LINK}download = \"50mbit\"\n{sections}"))
}

#[test]
fn the_download_has_its_own_capacity_and_policies_and_inherits_none() {
    assert_eq!(parse(LINK).unwrap().download(), None);
    let text = "[defaults]\nweight = 7\nmin = \"1mbit\"\ndown = { weight = 2 }\n[host]\ndown = { max = \"9mbit\" }\n\
        [[group]]\nname = \"g\"\nmax = \"80mbit\"\ndown = { min = \"5mbit\" }\n\
        [[class]]\nname = \"web\"\ngroup = \"g\"\nmin = \"2mbit\"\ndown = { weight = 3, min = \"1mbit\", max = \"4mbit\" }\n\
        [[class]]\nname = \"voice\"\nmatch = { dscp = 46 }\n";
    let config = shared(text).unwrap();
    let down = config.download().unwrap();
    assert_eq!((config.link.capacity, down.link.capacity), (BitRate::mbit(100), BitRate::mbit(50)));
    let rates = |layer: Layer| (layer.weight.map(Weight::get), layer.min, layer.max);
    assert_eq!(rates(down.defaults.layer()), (Some(2), None, None));
    assert_eq!(rates(down.host.layer()), (None, None, Some(BitRate::mbit(9))));
    assert_eq!(rates(down.groups[0].layer()), (None, Some(BitRate::mbit(5)), None));
    let [web] = &down.classes[..] else { panic!("a class with a match has no download: {:?}", down.classes) };
    assert_eq!(rates(web.layer()), (Some(3), Some(BitRate::mbit(1)), Some(BitRate::mbit(4))));
    assert_eq!(rates(config.classes[0].layer()), (None, Some(BitRate::mbit(2)), None));
    assert_eq!(down.download(), None);
}

#[test]
fn minimum_of_what_arrives_is_promised_of_the_download_alone() {
    let range = LINK.replace("\"100mbit\"", "{ min = \"2mbit\", max = \"100mbit\" }");
    let text =
        format!("{range}download = \"50mbit\"\n[[class]]\nname = \"web\"\ndown = {{ min = \"40mbit\" }}\n");
    let config = parse(&text).unwrap();
    assert_eq!(
        (config.link.assured(), config.download().unwrap().link.assured()),
        (BitRate::mbit(2), BitRate::mbit(50))
    );
}

#[test]
fn a_policy_of_what_arrives_that_cannot_hold_is_refused_with_its_place() {
    let web = "[[class]]\nname = \"web\"\n";
    for (text, want) in [
        (
            format!("{web}down = {{ min = \"48mbit\" }}"),
            "[[class]] web: down: its minimum of 48mbit cannot be promised",
        ),
        (format!("{web}down = {{ min = \"3mbit\", max = \"2mbit\" }}"), "[[class]] web: down: "),
        (format!("{web}down = {{ rate = \"3mbit\" }}"), "unknown field `rate`"),
        (
            format!("{web}match = {{ dscp = 46 }}\ndown = {{ weight = 2 }}"),
            "a match selects packets that leave",
        ),
        ("[host]\ndown = { max = \"0\" }".to_owned(), "[host]: down: "),
    ] {
        let error = shared(&text).expect_err(&text);
        assert!(error.contains(want), "{text}\n---\n{error}");
    }
    let error = parse(&format!("{LINK}{web}down = {{ weight = 2 }}")).unwrap_err();
    assert!(
        error.contains("[[class]] web: down: the download is not shared: set [link] download"),
        "{error}"
    );
    let error = parse(&format!("{LINK}download = \"1kbit\"\n")).unwrap_err();
    assert!(error.contains("[link] download: 1kbit is not between 64kbit and "), "{error}");
    let error = shared("engine = \"user\"\n").unwrap_err();
    assert!(
        error.contains("[link] download: cannot use engine user: it cannot share the download"),
        "{error}"
    );
    let error = parse(&format!("{LINK}charge_drops = true\n")).unwrap_err();
    assert!(
        error.contains("[link] charge_drops: the download is not shared: set [link] download"),
        "{error}"
    );
    assert!(shared("charge_drops = true\n").unwrap().download().unwrap().link.charge_drops);
    // 48 Mbit/s fit into what leaves.
    assert!(shared(&format!("{web}min = \"48mbit\"")).is_ok());
}

#[test]
fn two_classes_on_one_cgroup_are_refused_with_its_path() {
    let two = |one: &str, other: &str| {
        parse(&format!("{LINK}[[class]]\nname = \"x1\"\n{one}\n[[class]]\nname = \"x2\"\n{other}\n"))
    };
    let by_path = "cgroup = \"/atk.slice\"";
    for other in [by_path, "slice = \"atk.slice\"", "cgroup = \"/atk.slice/.\"", "cgroup = \"//atk.slice/\""]
    {
        for (one, other) in [(by_path, other), (other, by_path)] {
            let error = two(one, other).expect_err(other);
            let want =
                "[[class]] x2: cgroup /atk.slice belongs to class x1 already, and one class gets its packets";
            assert!(error.contains(want), "{other}\n---\n{error}");
        }
    }
    let nested = two("slice = \"a-b.slice\"", "cgroup = \"/a.slice/a-b.slice\"").unwrap_err();
    assert!(nested.contains("cgroup /a.slice/a-b.slice belongs to class x1"), "{nested}");
    for other in ["cgroup = \"/atk.slice/b\"", "slice = \"atk-b.slice\"", "unit = \"atk.service\""] {
        assert!(two(by_path, other).is_ok(), "{other}");
    }
}

/// The system's manager has each unit once, in one slice or another. Those of users and of containers are others.
#[test]
fn unit_of_one_class_and_its_cgroup_of_another_are_refused() {
    let two = |one: &str, other: &str| {
        parse(&format!("{LINK}[[class]]\nname = \"x1\"\n{one}\n[[class]]\nname = \"x2\"\n{other}\n"))
    };
    for (unit, path) in [
        ("backup.service", "/system.slice/backup.service"),
        ("backup.service", "//tenant.slice/tenant-a.slice/backup.service/"),
        ("init.scope", "/init.scope"),
        ("memory.service", "/system.slice/_memory.service"),
    ] {
        let [unit_line, cgroup] = [format!("unit = \"{unit}\""), format!("cgroup = \"{path}\"")];
        for (one, other) in [(&unit_line, &cgroup), (&cgroup, &unit_line)] {
            let error = two(one, other).expect_err(path);
            let path = path.trim_end_matches('/').replace("//", "/");
            let want =
                format!("[[class]] x2: cgroup {path} is that of unit {unit} and belongs to class x1 already");
            assert!(error.contains(&want), "{want}\n---\n{error}");
        }
    }
    for path in [
        "/system.slice/backup.service/sub",
        "/system.slice/other.service",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/backup.service",
    ] {
        assert!(two("unit = \"backup.service\"", &format!("cgroup = \"{path}\"")).is_ok(), "{path}");
    }
}

#[test]
fn a_unit_or_a_slice_names_processes_once() {
    let class = |text: &str| parse(&format!("{LINK}[[class]]\nname = \"a\"\n{text}\n"));
    for good in ["unit = \"backup.service\"", "slice = \"tenant-a.slice\"", "cgroup = \"/a\""] {
        assert!(class(good).is_ok(), "{good}");
    }
    let unit = "unit = \"backup.service\"";
    for (bad, want) in [
        (
            "cgroup = \"/../lxc.payload.web\"".to_owned(),
            "cgroup /../lxc.payload.web is not a path below the root",
        ),
        ("unit = \"backup\"".to_owned(), "`backup` is not the name of a unit with processes"),
        (
            format!("{unit}\nslice = \"a.slice\""),
            "[[class]] a: cgroup, unit and slice name the same processes",
        ),
        (
            format!("{unit}\nmatch = {{ port = 1 }}"),
            "cannot be combined with interface, cgroup, unit or slice",
        ),
        (
            format!("{unit}\n[[class]]\nname = \"b\"\n{unit}"),
            "unit backup.service belongs to class a already",
        ),
    ] {
        let error = class(&bad).expect_err(&bad);
        assert!(error.contains(want), "{bad}\n---\n{error}");
    }
}

#[test]
fn paths_that_no_socket_and_no_state_can_have_are_refused() {
    let with = |line: &str| parse(&format!("{LINK}[agent]\n{line}\n")).map(drop);
    let refused = |line: &str| with(line).unwrap_err();
    assert!(refused("socket = \"\"").contains("[agent] socket: the path is empty"));
    assert!(refused("state = \"\"").contains("[agent] state: the path is empty"));
    let long = refused(&format!("socket = \"/{}\"", "x".repeat(107)));
    assert!(long.contains("has 108 bytes, and that of a socket has at most 107"), "{long}");
    assert_eq!(with(&format!("socket = \"/{}\"", "x".repeat(106))), Ok(()));
}

#[test]
fn running_agent_reads_no_pipe_and_no_file_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.toml");
    let said = |path: &Path| weir_units::chain(&load_again(path).map(drop).unwrap_err());
    assert!(said(&path).contains("there is no such file"));
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(said(&path).ends_with("it is not a regular file"), "{}", said(&path));
    std::fs::remove_file(&path).unwrap();
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(said(&path).ends_with("it has more than 16777216 bytes"), "{}", said(&path));
}

#[test]
fn starting_agent_waits_for_no_named_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.toml");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(weir_units::chain(&load(&path).map(drop).unwrap_err())));
    let told = receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("it does not wait");
    assert!(told.ends_with("it is a named pipe: write the configuration into a file"), "{told}");
}

/// A refusal names the key, the value and what is wanted, in words.
#[test]
fn wrong_value_of_any_key_is_refused_without_the_names_of_types() {
    let keys = [
        "[link] capacity download charge_drops overhead mpu atm framing engine form allocator attach delay_ms reservable \
         local exempt charge_local split queues pacing priority",
        "[agent] socket state audit_size audit_files at_end",
        "[discover] docker podman containerd incus netns lxc libvirt",
        "[labels] accept max_min total_min",
        "[defaults] weight min max",
        "[host] weight min max",
        "[[class]] name weight min max group interface match",
        "[[group]] name weight min max",
        "[[congestion]] to port start after then window direction",
        "[advice] to share turn_s try",
        "[agreements] reservable other together share keep_days most offers_at_once offers_per_minute",
        "[images] budget keep_free keep_new_s max_rate scrub_rate listen any_registry",
        "[access] read admin",
        "[api] listen",
    ];
    let values = [
        "-5",
        "1e99",
        "nan",
        "99999999999999999999",
        "true",
        "\"\\u0001\"",
        "[[]]",
        "{ x = 1 }",
        "1979-05-27",
    ];
    let mut raw = Vec::new();
    for line in keys {
        let (section, names) = line.split_once(' ').unwrap();
        for (key, value) in names.split_whitespace().flat_map(|key| values.map(|value| (key, value))) {
            let head = if section == "[link]" {
                LINK.lines().filter(|line| !line.starts_with(key)).collect::<Vec<_>>().join("\n")
            } else {
                format!("{LINK}{section}")
            };
            let Err(why) = parse(&format!("{head}\n{key} = {value}\n")) else { continue };
            let words: Vec<&str> = why.split(|c: char| !c.is_ascii_alphanumeric()).collect();
            let is_raw = |word: &&str| {
                ["usize", "untagged", "struct", "variant", "tuple", "enum", "sequence"].contains(word)
                    || word
                        .strip_prefix(['u', 'i', 'f'])
                        .is_some_and(|rest| ["8", "16", "32", "64"].contains(&rest))
            };
            let is_told = why.contains(key) || why.contains("missing field");
            if words.iter().any(is_raw) || !is_told {
                raw.push(format!("{section} {key} = {value}: {why}"));
            }
        }
    }
    assert!(raw.is_empty(), "{} of them:\n{}", raw.len(), raw.join("\n\n"));
}

#[test]
fn template_that_no_offer_can_meet_is_refused_with_the_numbers() {
    let template = |min: &str, more: &str| {
        let text = format!(
            "{LINK}[agreements]\n[[agreements.template]]\nid = \"a\"\nresponder = \"node\"\n\
             service = {{ term = \"t\", name = \"s\" }}\nterms = {{ min = \"{min}\", max = \"20mbit\"{more}\n"
        );
        parse(&text).map(drop)
    };
    let from = "start = \"2020-01-01T00:00:00Z\"";
    let good = [
        "}".to_owned(),
        "}\nconstraints = { min_at_least = \"1mbit\", min_at_most = \"10mbit\", longest_s = 60 }".to_owned(),
        format!(", {from}, end = \"2021-01-01T00:00:00Z\" }}"),
        ", end = \"2020-01-01T00:00:00Z\" }\nconstraints = { longest_s = 60 }".to_owned(),
    ];
    for more in &good {
        assert_eq!(template("10mbit", more), Ok(()), "{more}");
    }
    for (min, more, why) in [
        ("30mbit", "}", "NetMinBandwidth of 30mbit within a NetMaxBandwidth of 20mbit"),
        ("10mbit", ", direction = \"download\" }", "this node does not share its download"),
        (
            "5mbit",
            "}\nconstraints = { min_at_most = \"2mbit\" }",
            "NetMinBandwidth of 5mbit is outside of 10kbit to 2mbit",
        ),
        ("5mbit", "}\nconstraints = { max_at_most = \"9mbit\" }", "of 20mbit is outside of 10kbit to 9mbit"),
        ("5mbit", "}\nconstraints = { longest_s = 0 }", "it would last no time"),
        ("9kbit", "}", "a NetMinBandwidth of 9kbit: the least is 10kbit"),
    ] {
        let told = template(min, more).unwrap_err();
        let begins = told.contains("[[agreements.template]] a: no offer by its terms is accepted: cannot ");
        assert!(begins && told.contains(why), "{told}");
    }
    let told = template(
        "5mbit",
        &format!(", {from}, end = \"2020-01-01T02:00:00Z\" }}\nconstraints = {{ longest_s = 60 }}"),
    );
    assert!(told.unwrap_err().contains("it holds for 60s at most"));
    let text = format!(
        "{LINK}[agreements]\n[[agreements.template]]\nid = \"a\"\nresponder = \"node\"\n\
         service = {{ term = \"t\", name = \"s\" }}\nterms = {{ min = \"1mbit\", max = \"99mbit\" }}\n"
    );
    let told = parse(&text).map(drop).unwrap_err();
    assert!(
        told.contains("NetMaxBandwidth of 99mbit: 90mbit of the link's 100mbit may be reserved"),
        "{told}"
    );
}
