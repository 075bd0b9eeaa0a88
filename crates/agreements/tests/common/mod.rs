//! Documents for tests.

#![allow(dead_code, reason = "each test uses a part of it")]

use proptest::{collection::vec, option, prelude::*, sample::select};
use weir_agree::*;
use weir_share::Weight;
use weir_units::{BitRate, Bytes};

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn utc(text: &str) -> Utc {
    text.parse().unwrap()
}

/// The paper's Fig. 2 as an offer.
pub(crate) fn fig2() -> Offer {
    Offer {
        id: None,
        name: None,
        context: Context {
            initiator: name("customer"),
            responder: None,
            expiration: None,
            template_id: None,
            template_name: None,
        },
        service: Service::new(name("server_parameters"), name("httpd")),
        terms: Terms::new(BitRate::mbit(19), BitRate::mbit(19)),
    }
}

/// An offer with everything in it.
pub(crate) fn full_offer() -> Offer {
    Offer {
        id: Some(name("camera-2026-11")),
        name: Some(name("Camera uplink")),
        context: Context {
            initiator: name("acme"),
            responder: Some(name("node-1")),
            expiration: Some(utc("2027-12-31T00:00:00Z")),
            template_id: Some(name("video")),
            template_name: Some(name("Video uplink")),
        },
        service: Service::new(name("server_parameters"), name("camera")),
        terms: Terms {
            start: Some(utc("2026-12-01T08:00:00Z")),
            end: Some(utc("2027-12-01T08:00:00Z")),
            share: Share::Weighted,
            weight: Weight::new(3).unwrap(),
            selector: Selector {
                container: Some(name("camera")),
                protocol: Some(Protocol::Tcp),
                source_port: Some(8001),
                destination_port: Some(443),
                subnet: Some("10.20.0.0/16".parse().unwrap()),
                dscp: Some(34),
            },
            quota: Some(Quota {
                day: Some(Bytes(10 << 30)),
                month: Some(Bytes(100 << 30)),
                after: BitRate::mbit(2),
            }),
            ..Terms::new(BitRate::mbit(10), BitRate::mbit(20))
        },
    }
}

/// A template with everything in it.
pub(crate) fn template() -> Template {
    let offer = full_offer();
    Template {
        id: name("video"),
        name: Some(name("Video uplink")),
        responder: name("node-1"),
        service: offer.service,
        terms: Terms { start: None, end: None, ..offer.terms },
        constraints: Constraints {
            min_at_least: Some(GRAIN),
            min_at_most: Some(BitRate::mbit(20)),
            max_at_most: Some(BitRate::mbit(50)),
            longest_s: Some(366 * 86_400),
        },
    }
}

pub(crate) fn agreement() -> Agreement {
    Agreement {
        id: name("a-17"),
        state: AgreementState::Observed,
        service_state: ServiceState::NotReady,
        guarantee_state: GuaranteeState::NotDetermined,
        answered: utc("2026-11-20T11:00:00.25Z"),
        from: utc("2026-12-01T08:00:00Z"),
        until: Some(utc("2027-12-01T08:00:00Z")),
        selector: full_offer().terms.selector,
        offer: full_offer(),
    }
}

pub(crate) fn any_name() -> impl Strategy<Value = Name> {
    let chars =
        select(vec!['a', 'Z', '9', '-', '<', '>', '&', '"', '\'', 'ü', '雪', ' ', '{', '\\', '#', ']']);
    vec(chars, 1..20)
        .prop_filter_map("not a name", |chars| Name::new(&chars.into_iter().collect::<String>()).ok())
}

pub(crate) fn any_utc() -> impl Strategy<Value = Utc> {
    (0..Utc::MAX.millis()).prop_map(Utc::from_millis)
}

pub(crate) fn any_rate() -> impl Strategy<Value = BitRate> {
    prop_oneof![
        (0..BitRate::MAX.0),
        (1..1_000_000u64).prop_map(|n| n * 10_000),
        (1..4_000u64).prop_map(|n| n << 20),
        Just(BitRate::MAX.0),
    ]
    .prop_map(BitRate)
}

prop_compose! {
    fn any_selector()(
        container in option::of(any_name()),
        protocol in option::of(select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp])),
        ports in any::<[Option<u16>; 2]>(),
        subnet in option::of((any::<std::net::IpAddr>(), 0..=32u8)),
        dscp in any::<Option<u8>>(),
    ) -> Selector {
        let [source_port, destination_port] = ports;
        let subnet = subnet.map(|(address, bits)| ipnet::IpNet::new(address, bits).unwrap());
        Selector { container, protocol, source_port, destination_port, subnet, dscp }
    }
}

prop_compose! {
    pub(crate) fn any_terms()(
        rates in [any_rate(), any_rate(), any_rate()],
        start in option::of(any_utc()),
        end in option::of(any_utc()),
        direction in select(vec![Directions::Upload, Directions::Download, Directions::Both]),
        share in select(vec![Share::Additive, Share::Weighted]),
        weight in 1..=Weight::MAX,
        selector in any_selector(),
        quota in option::of(any::<[Option<u64>; 2]>()),
    ) -> Terms {
        let [min, max, after] = rates;
        let weight = Weight::new(weight).unwrap();
        let quota = quota.map(|[day, month]| Quota { day: day.map(Bytes), month: month.map(Bytes), after });
        Terms { min, max, start, end, direction, share, weight, selector, quota }
    }
}

prop_compose! {
    pub(crate) fn any_service()(
        names in [any_name(), any_name()],
        guarantees in proptest::collection::hash_set(any_name(), 0..4),
        reference in option::of([any_name(), any_name()]),
    ) -> Service {
        let [term, name] = names;
        let guarantees = Guarantees::new(guarantees.into_iter().collect()).unwrap_or_default();
        let reference = reference.map(|[term, address]| Reference { term, address });
        Service { term, name, guarantees, reference }
    }
}

prop_compose! {
    pub(crate) fn any_offer()(
        id in option::of(any_name()),
        name in option::of(any_name()),
        initiator in any_name(),
        others in [option::of(any_name()), option::of(any_name()), option::of(any_name())],
        expiration in option::of(any_utc()),
        service in any_service(),
        terms in any_terms(),
    ) -> Offer {
        let [responder, template_id, template_name] = others;
        let context = Context { initiator, responder, expiration, template_id, template_name };
        Offer { id, name, context, service, terms }
    }
}

prop_compose! {
    pub(crate) fn any_template()(
        offer in any_offer(),
        id in any_name(),
        responder in any_name(),
        rates in [option::of(any_rate()), option::of(any_rate()), option::of(any_rate())],
        longest_s in any::<Option<u32>>(),
    ) -> Template {
        let [min_at_least, min_at_most, max_at_most] = rates;
        let constraints = Constraints { min_at_least, min_at_most, max_at_most, longest_s };
        let Offer { name, service, terms, .. } = offer;
        Template { id, name, responder, service, terms, constraints }
    }
}

prop_compose! {
    pub(crate) fn any_agreement()(
        id in any_name(),
        state in select(AgreementState::ALL.to_vec()),
        service_state in select(ServiceState::ALL.to_vec()),
        guarantee_state in select(GuaranteeState::ALL.to_vec()),
        times in [any_utc(), any_utc()],
        until in option::of(any_utc()),
        selector in any_selector(),
        offer in any_offer(),
    ) -> Agreement {
        let [answered, from] = times;
        Agreement { id, state, service_state, guarantee_state, answered, from, until, selector, offer }
    }
}
