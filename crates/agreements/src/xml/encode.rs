//! From the model to XML.

use quick_xml::{
    Writer,
    events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event},
};
use weir_units::BitRate;

use super::{QOS, WEIR, WSA, WSAG, XS, in_units};
use crate::{
    Agreement, Constraints, Context, Directions, Offer, Quota, Selector, Service, Share, Template, Terms, Utc,
};

/// The text of the guarantee, for people.
pub(super) const SERVICE_LEVEL: &str = "delivered >= min(demand, NetMinBandwidth)";

/// Where an item of a template's constraints is, as XPath.
pub(super) fn location(name: &str) -> String {
    format!("//qos:ServerParams/qos:{name}[@unit='bps']")
}

/// An XML text that grows. Writing to memory cannot fail.
pub(super) struct Out(Writer<Vec<u8>>);

impl Out {
    pub(super) fn new() -> Out {
        let mut out = Out(Writer::new_with_indent(Vec::new(), b' ', 2));
        out.write(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)));
        out
    }

    pub(super) fn finish(self) -> String {
        let mut text = String::from_utf8(self.0.into_inner()).unwrap_or_default();
        text.push('\n');
        text
    }

    fn write(&mut self, event: Event<'_>) {
        self.0.write_event(event).unwrap_or_default();
    }

    /// An element with what `inside` writes into it.
    pub(super) fn element(&mut self, name: &str, attributes: &[(&str, &str)], inside: impl FnOnce(&mut Out)) {
        let start = BytesStart::new(name).with_attributes(attributes.iter().copied());
        self.write(Event::Start(start));
        inside(self);
        self.write(Event::End(BytesEnd::new(name)));
    }

    pub(super) fn empty(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.write(Event::Empty(BytesStart::new(name).with_attributes(attributes.iter().copied())));
    }

    /// An element with a text.
    pub(super) fn leaf(&mut self, name: &str, attributes: &[(&str, &str)], text: impl ToString) {
        self.element(name, attributes, |out| out.write(Event::Text(BytesText::new(&text.to_string()))));
    }

    pub(super) fn optional(&mut self, name: &str, text: Option<impl ToString>) {
        if let Some(text) = text {
            self.leaf(name, &[], text);
        }
    }
}

fn bandwidth(out: &mut Out, name: &str, rate: BitRate) {
    let (number, unit) = in_units(rate);
    out.leaf(name, &[("unit", unit)], number);
}

fn parties(out: &mut Out, context: &Context) {
    out.leaf("wsag:AgreementInitiator", &[], &context.initiator);
    out.optional("wsag:AgreementResponder", context.responder.as_ref());
    out.leaf("wsag:ServiceProvider", &[], "AgreementResponder");
    out.optional("wsag:ExpirationTime", context.expiration);
    out.optional("wsag:TemplateId", context.template_id.as_ref());
    out.optional("wsag:TemplateName", context.template_name.as_ref());
}

fn terms(out: &mut Out, service: &Service, terms: &Terms) {
    let described = [("wsag:Name", service.term.as_str()), ("wsag:ServiceName", service.name.as_str())];
    let all = |out: &mut Out| {
        out.element("wsag:ServiceDescriptionTerm", &described, |out| server_params(out, terms));
        if let Some(reference) = &service.reference {
            let attributes =
                [("wsag:Name", reference.term.as_str()), ("wsag:ServiceName", service.name.as_str())];
            out.element("wsag:ServiceReference", &attributes, |out| {
                out.element("wsa:EndpointReference", &[("xmlns:wsa", WSA)], |out| {
                    out.leaf("wsa:Address", &[], &reference.address);
                });
            });
        }
        for name in service.guarantees.iter() {
            let attributes = [("wsag:Name", name.as_str()), ("wsag:Obligated", "ServiceProvider")];
            out.element("wsag:GuaranteeTerm", &attributes, |out| guarantee(out, service));
        }
    };
    out.element("wsag:Terms", &[], |out| out.element("wsag:All", &[], all));
}

fn guarantee(out: &mut Out, service: &Service) {
    out.empty("wsag:ServiceScope", &[("wsag:ServiceName", service.name.as_str())]);
    out.element("wsag:ServiceLevelObjective", &[], |out| {
        out.element("wsag:KPITarget", &[], |out| {
            out.leaf("wsag:KPIName", &[], "NetMinBandwidth");
            out.leaf("wsag:CustomServiceLevel", &[], SERVICE_LEVEL);
        });
    });
    out.empty("wsag:BusinessValueList", &[]);
}

/// The paper's Fig. 2, and what the paper has no word for behind it.
fn server_params(out: &mut Out, terms: &Terms) {
    let plain = Terms::new(terms.min, terms.max) == *terms;
    let spaces = [("xmlns:qos", QOS), ("xmlns:weir", WEIR)];
    out.element("qos:ServerParams", if plain { &spaces[..1] } else { &spaces }, |out| {
        bandwidth(out, "qos:NetMinBandwidth", terms.min);
        bandwidth(out, "qos:NetMaxBandwidth", terms.max);
        out.optional("weir:Start", terms.start);
        out.optional("weir:End", terms.end);
        out.optional("weir:Direction", Some(terms.direction).filter(|one| *one != Directions::default()));
        let weight = terms.weight.to_string();
        if (terms.share, terms.weight) != (Share::default(), weir_share::Weight::ONE) {
            out.leaf("weir:Share", &[("weight", &weight)], terms.share);
        }
        if !terms.selector.is_empty() {
            out.element("weir:Selector", &[], |out| selector(out, &terms.selector));
        }
        if let Some(quota) = &terms.quota {
            out.element("weir:Quota", &[], |out| self::quota(out, quota));
        }
    });
}

fn selector(out: &mut Out, selector: &Selector) {
    out.optional("weir:Container", selector.container.as_ref());
    out.optional("weir:Protocol", selector.protocol);
    out.optional("weir:SourcePort", selector.source_port);
    out.optional("weir:DestinationPort", selector.destination_port);
    out.optional("weir:Subnet", selector.subnet);
    out.optional("weir:Dscp", selector.dscp);
}

fn quota(out: &mut Out, quota: &Quota) {
    out.optional("weir:Day", quota.day.map(|bytes| bytes.0));
    out.optional("weir:Month", quota.month.map(|bytes| bytes.0));
    bandwidth(out, "weir:After", quota.after);
}

pub(super) fn offer(offer: &Offer, out: &mut Out) {
    let id = offer.id.as_ref().map(|id| ("wsag:AgreementId", id.as_str()));
    let attributes: Vec<_> = [("xmlns:wsag", WSAG)].into_iter().chain(id).collect();
    out.element("wsag:AgreementOffer", &attributes, |out| {
        out.optional("wsag:Name", offer.name.as_ref());
        out.element("wsag:Context", &[], |out| parties(out, &offer.context));
        terms(out, &offer.service, &offer.terms);
    });
}

pub(super) fn template(template: &Template, out: &mut Out) {
    let attributes = [("xmlns:wsag", WSAG), ("wsag:TemplateId", template.id.as_str())];
    out.element("wsag:Template", &attributes, |out| {
        out.optional("wsag:Name", template.name.as_ref());
        out.element("wsag:Context", &[], |out| {
            out.leaf("wsag:AgreementResponder", &[], &template.responder);
            out.leaf("wsag:ServiceProvider", &[], "AgreementResponder");
        });
        terms(out, &template.service, &template.terms);
        let spaces = [("xmlns:qos", QOS), ("xmlns:weir", WEIR), ("xmlns:xs", XS)];
        out.element("wsag:CreationConstraints", &spaces, |out| constraints(out, &template.constraints));
    });
}

fn constraints(out: &mut Out, constraints: &Constraints) {
    let Constraints { min_at_least, min_at_most, max_at_most, longest_s } = *constraints;
    let items = [("NetMinBandwidth", min_at_least, min_at_most), ("NetMaxBandwidth", None, max_at_most)];
    for (name, least, most) in items.into_iter().filter(|item| item.1.is_some() || item.2.is_some()) {
        out.element("wsag:Item", &[("wsag:Name", name)], |out| {
            out.leaf("wsag:Location", &[], location(name));
            out.element("wsag:ItemConstraint", &[], |out| {
                for (facet, rate) in [("xs:minInclusive", least), ("xs:maxInclusive", most)] {
                    if let Some(rate) = rate {
                        out.empty(facet, &[("value", &rate.0.to_string())]);
                    }
                }
            });
        });
    }
    if let Some(seconds) = longest_s {
        out.element("wsag:Constraint", &[], |out| {
            out.empty("weir:Longest", &[("seconds", &seconds.to_string())]);
        });
    }
}

pub(super) fn agreement(agreement: &Agreement, out: &mut Out) {
    let offer = &agreement.offer;
    let [answered, from] = [agreement.answered, agreement.from].map(|moment| moment.to_string());
    let until = agreement.until.as_ref().map(Utc::to_string);
    out.element("wsag:AgreementProperties", &[("xmlns:wsag", WSAG)], |out| {
        out.optional("wsag:Name", offer.name.as_ref());
        out.leaf("wsag:AgreementId", &[], &agreement.id);
        out.element("wsag:Context", &[("xmlns:weir", WEIR)], |out| {
            parties(out, &offer.context);
            let times = [("answered", answered.as_str()), ("from", &from)];
            let until = until.as_deref().map(|until| ("until", until));
            out.empty("weir:InForce", &times.into_iter().chain(until).collect::<Vec<_>>());
            out.element("weir:Selector", &[], |out| selector(out, &agreement.selector));
            out.optional("weir:OfferId", offer.id.as_ref());
        });
        terms(out, &offer.service, &offer.terms);
        let mut state = |element: &str, attributes: &[(&str, &str)], state: &str| {
            out.element(element, attributes, |out| out.leaf("wsag:State", &[], state));
        };
        state("wsag:AgreementState", &[], agreement.state.name());
        for name in offer.service.guarantees.iter() {
            let term = [("wsag:termName", name.as_str())];
            state("wsag:GuaranteeTermState", &term, agreement.guarantee_state.name());
        }
        let term = [("wsag:termName", offer.service.term.as_str())];
        state("wsag:ServiceTermState", &term, agreement.service_state.name());
    });
}
