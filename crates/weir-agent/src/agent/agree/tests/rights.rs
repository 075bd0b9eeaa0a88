//! Callers without the right `admin`.

use super::*;

#[test]
fn user_ends_and_renews_own_agreements_and_root_those_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("keep_days = 1\n");
    let id = {
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
        let made = agreements
            .offer(&client(), Some(Maker::User(1000)), offer("web", 20), &store, moment(0))
            .unwrap();
        let old = agreements.offer(&client(), None, offer("db", 20), &store, moment(0)).unwrap().agreement.id;
        assert!(agreements.permits(&Owner::Of(Maker::User(1000)), old.as_str(), "renew").is_err());
        made.agreement.id
    };
    // The owner is known after a restart too.
    let store = Store::open(dir.path()).unwrap();
    let mut agreements = Agreements::open(&config, &store, moment(1).utc).unwrap().unwrap();
    for owner in [Owner::Any, Owner::Of(Maker::User(1000))] {
        agreements.permits(&owner, id.as_str(), "terminate").unwrap();
    }
    let refused = agreements.permits(&Owner::Of(Maker::User(1001)), id.as_str(), "terminate").unwrap_err();
    assert_eq!(refused.code, FaultCode::Forbidden);
    assert_eq!(
        refused.message,
        "user 1001 cannot terminate a-1: user 1000 made it; root may, and so may each user of `admin` in \
         `[access]` of the configuration"
    );
    // An id is never used again, so no user inherits an agreement.
    agreements.terminate(id.as_str(), &store, moment(2).utc).unwrap();
    agreements.finish(|_| true, &store, moment(2).utc);
    agreements.settle(&store, moment(2 * 86_400).utc);
    assert!(!store.agreements().unwrap().owners.contains_key(&id));
}

#[test]
fn offers_without_admin_are_for_one_container_or_by_a_template() {
    let user = Owner::Of(Maker::User(1000));
    let with = |change: &dyn Fn(&mut Offer)| {
        let mut offer = offer("web", 20);
        change(&mut offer);
        offer
    };
    let of_all = with(&|offer| offer.terms.selector.subnet = Some("0.0.0.0/0".parse().unwrap()));
    let by = |id: &str| {
        let id = Name::new(id).unwrap();
        with(&|offer| offer.context.template_id = Some(id.clone()))
    };
    let free = StoredAgreements::new().agreements;
    assert!(free.permits_offer(&user, &offer("web", 20), false, moment(0).utc).is_ok());
    // Neither does another name of such a class help, nor that of a class that selects packets.
    let aliases = RESERVED.map(|name| offer(&format!("weir:{name}"), 20));
    let others = ["group:shop", "agreement:a-1", "absent:web"].map(|name| offer(name, 20));
    let at_host = with(&|offer| {
        offer.terms.selector.container = Some(Name::new("weir:host").unwrap());
        offer.terms.selector.source_port = Some(80);
    });
    assert!(
        free.permits_offer(&user, &offer("docker:host", 20), false, moment(0).utc).is_ok(),
        "a container of that name"
    );
    assert!(free.permits_offer(&user, &offer("voice", 20), true, moment(0).utc).is_err());
    let own = RESERVED.map(|name| offer(name, 20));
    for refused in own.iter().chain(&aliases).chain(&others).chain([&at_host, &of_all]) {
        let fault = free.permits_offer(&user, refused, false, moment(0).utc).unwrap_err();
        assert_eq!(fault.code, FaultCode::Forbidden);
        assert!(fault.message.contains("offer for a container"), "{}", fault.message);
        assert!(free.permits_offer(&Owner::Any, refused, false, moment(0).utc).is_ok());
    }

    let template = |id: &str, selector: &str| {
        format!(
            "[[agreements.template]]\nid = \"{id}\"\nresponder = \"node\"\nservice = {{ term = \"t\", name = \"s\" }}\n\
             terms = {{ min = \"1mbit\", max = \"9mbit\"{selector} }}\n"
        )
    };
    let selecting = template("http", ", selector = { destination_port = 80, protocol = \"tcp\" }");
    let bound = StoredAgreements::with(&(template("any", "") + &selecting)).agreements;
    let is_permitted = |offer: &Offer| bound.permits_offer(&user, offer, false, moment(0).utc).is_ok();
    assert!(!is_permitted(&offer("web", 20)) && !is_permitted(&by("bandwidth")), "it names none of them");
    assert!(is_permitted(&by("any")) && is_permitted(&by("http")));
    let other_packets = Offer { context: by("http").context, ..of_all };
    assert!(!is_permitted(&other_packets));
    assert!(bound.permits_offer(&Owner::Any, &offer("web", 20), false, moment(0).utc).is_ok());
}

#[test]
fn container_under_an_agreement_is_no_one_elses_without_admin() {
    let mut stored = StoredAgreements::new();
    let maker = |party: &str| Maker::Party(party.to_owned());
    let of = |party: &str, subnet: Option<&str>| {
        let mut offer = offer("video", 20);
        offer.context.initiator = Name::new(party).unwrap();
        if let Some(subnet) = subnet {
            let container = Name::new("docker:video").ok();
            offer.terms.selector = Selector { container, subnet: subnet.parse().ok(), ..Selector::default() };
        }
        offer
    };
    let mut made = of("acme", None);
    made.terms.end = Some(moment(100).utc);
    stored.agreements.offer(&client(), Some(maker("acme")), made, &stored.store, moment(0)).unwrap();
    let permits = |owner: &Owner, offer: &Offer| {
        stored.agreements.permits_offer(owner, offer, false, moment(5).utc).map_err(|fault| fault.code)
    };
    let (acme, evil) = (Owner::Of(maker("acme")), Owner::Of(maker("evil")));
    let part = of("evil", Some("0.0.0.0/0"));
    assert_eq!(permits(&evil, &part), Err(FaultCode::SelectorTaken));
    assert_eq!(permits(&acme, &of("acme", Some("192.0.2.0/24"))), Ok(()));
    assert_eq!(permits(&Owner::Any, &part), Ok(()));
    // A user may name any party.
    let user = Owner::Of(Maker::User(1000));
    assert_eq!(permits(&user, &of("acme", Some("192.0.2.0/24"))), Err(FaultCode::SelectorTaken));

    let mut later = part;
    later.terms.start = Some(moment(101).utc);
    assert_eq!(permits(&evil, &later), Ok(()), "the first one is over then");
    let mut other = of("evil", None);
    other.service.name = Name::new("mail").unwrap();
    assert_eq!(permits(&evil, &other), Ok(()));
}

/// A part of the packets cannot grow into the time of another's agreement either.
#[test]
fn renewal_without_admin_ends_before_another_accounts_agreement() {
    let mut stored = StoredAgreements::new();
    let maker = |party: &str| Maker::Party(party.to_owned());
    let mut make = |party: &str, start, end, subnet: Option<&str>| {
        let mut offer = offer("video", 20);
        offer.context.initiator = Name::new(party).unwrap();
        (offer.terms.start, offer.terms.end) = (Some(moment(start).utc), Some(moment(end).utc));
        if let Some(subnet) = subnet {
            let container = Name::new("video").ok();
            offer.terms.selector = Selector { container, subnet: subnet.parse().ok(), ..Selector::default() };
        }
        let made = stored.agreements.offer(&client(), Some(maker(party)), offer, &stored.store, moment(0));
        made.unwrap().agreement.id
    };
    let part = make("evil", 0, 50, Some("0.0.0.0/0"));
    let whole = make("acme", 60, 100, None);
    let permits = |owner: &Owner, id: &Name, end: Option<u64>| {
        let end = end.map(|end| moment(end).utc);
        stored.agreements.permits_renewal(owner, id.as_str(), end, moment(5).utc).map_err(|fault| fault.code)
    };
    let (acme, evil) = (Owner::Of(maker("acme")), Owner::Of(maker("evil")));
    assert_eq!(permits(&evil, &part, Some(60)), Ok(()));
    for end in [Some(61), Some(200), None] {
        assert_eq!(permits(&evil, &part, end), Err(FaultCode::SelectorTaken), "{end:?}");
        assert_eq!(permits(&Owner::Any, &part, end), Ok(()));
    }
    assert_eq!(permits(&evil, &whole, Some(200)), Err(FaultCode::Forbidden), "it is not evil's");
    assert_eq!(permits(&acme, &whole, Some(200)), Ok(()), "only what is added counts");
}
