//! From elements to the model.

use weir_units::BitRate;

use super::{
    WEIR, WSAG, XS,
    service::{NAME, named, optional, selector, value},
    terms::terms,
    tree::{Element, Q, Reading},
};
use crate::{
    Agreement, AgreementState, Constraints, Context, Fault, FaultCode, GuaranteeState, Name, Offer,
    ServiceState, Template,
};

type Result<T> = std::result::Result<T, Fault>;

/// One of a list, by its name in WS-Agreement.
fn one_of<T: Copy>(r: &Reading<'_>, element: &Element, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
    let text = r.text(element, &[])?;
    all.iter().copied().find(|&one| name(one) == text).ok_or_else(|| {
        let accepted = all.iter().map(|&one| name(one).to_owned());
        r.refuse_for(FaultCode::BadValue, element, "it is none of the known states", accepted)
    })
}

const INITIATOR: Q = (WSAG, "AgreementInitiator");
const RESPONDER: Q = (WSAG, "AgreementResponder");
const PROVIDER: Q = (WSAG, "ServiceProvider");
const EXPIRATION: Q = (WSAG, "ExpirationTime");
const TEMPLATE_ID: Q = (WSAG, "TemplateId");
const TEMPLATE_NAME: Q = (WSAG, "TemplateName");
const CONTEXT: Q = (WSAG, "Context");
const TERMS: Q = (WSAG, "Terms");
const IN_FORCE: Q = (WEIR, "InForce");

/// The provider of the service is the responder, or is not said.
fn check_provider(r: &Reading<'_>, context: &Element) -> Result<()> {
    let provider = r.child(context, PROVIDER)?;
    if r.text(provider, &[])? == "AgreementResponder" {
        return Ok(());
    }
    let accepted = ["AgreementResponder".to_owned()];
    Err(r.refuse_for(FaultCode::BadValue, provider, "who is asked provides the service", accepted))
}

fn context(r: &Reading<'_>, context: &Element) -> Result<Context> {
    check_provider(r, context)?;
    Ok(Context {
        initiator: value(r, r.child(context, INITIATOR)?)?,
        responder: optional(r, context, RESPONDER)?,
        expiration: optional(r, context, EXPIRATION)?,
        template_id: optional(r, context, TEMPLATE_ID)?,
        template_name: optional(r, context, TEMPLATE_NAME)?,
    })
}

const PARTIES: [Q; 6] = [INITIATOR, RESPONDER, PROVIDER, EXPIRATION, TEMPLATE_ID, TEMPLATE_NAME];

pub(super) fn offer(r: &Reading<'_>, root: &Element) -> Result<Offer> {
    let id = (WSAG, "AgreementId");
    r.check(root, &[id], &[NAME, CONTEXT, TERMS], &[])?;
    let about = r.child(root, CONTEXT)?;
    r.check(about, &[], &PARTIES, &[])?;
    let (service, terms) = terms(r, r.child(root, TERMS)?)?;
    Ok(Offer {
        id: r.attribute(root, id).map(|text| named(r, root, text)).transpose()?,
        name: optional(r, root, NAME)?,
        context: context(r, about)?,
        service,
        terms,
    })
}

pub(super) fn template(r: &Reading<'_>, root: &Element) -> Result<Template> {
    let (id, rules) = (TEMPLATE_ID, (WSAG, "CreationConstraints"));
    r.check(root, &[id], &[NAME, CONTEXT, TERMS, rules], &[])?;
    let context = r.child(root, CONTEXT)?;
    r.check(context, &[], &[RESPONDER, PROVIDER], &[])?;
    check_provider(r, context)?;
    let (service, terms) = terms(r, r.child(root, TERMS)?)?;
    Ok(Template {
        id: named(r, root, r.required(root, id)?)?,
        name: optional(r, root, NAME)?,
        responder: value(r, r.child(context, RESPONDER)?)?,
        service,
        terms,
        constraints: constraints(r, r.child(root, rules)?)?,
    })
}

fn constraints(r: &Reading<'_>, element: &Element) -> Result<Constraints> {
    let (item, constraint) = ((WSAG, "Item"), (WSAG, "Constraint"));
    r.check(element, &[], &[constraint], &[item])?;
    let mut found = Constraints::default();
    for item in element.children.iter().filter(|child| child.name == "Item") {
        let (name, location, rule) = (NAME, (WSAG, "Location"), (WSAG, "ItemConstraint"));
        r.check(item, &[name], &[location, rule], &[])?;
        let name = r.required(item, name)?;
        let (low, high) = match name {
            "NetMinBandwidth" => (Some(&mut found.min_at_least), &mut found.min_at_most),
            "NetMaxBandwidth" => (None, &mut found.max_at_most),
            _ => {
                let accepted = ["NetMinBandwidth".to_owned(), "NetMaxBandwidth".to_owned()];
                return Err(r.refuse_for(FaultCode::BadValue, item, "no such item is constrained", accepted));
            }
        };
        let place = r.child(item, location)?;
        if r.text(place, &[])? != super::encode::location(name) {
            let accepted = [super::encode::location(name)];
            return Err(r.refuse_for(FaultCode::BadValue, place, "it is elsewhere", accepted));
        }
        let rule = r.child(item, rule)?;
        let (least, most) = ((XS, "minInclusive"), (XS, "maxInclusive"));
        match low {
            Some(low) => {
                r.check(rule, &[], &[least, most], &[])?;
                *low = r.find(rule, least).map(|facet| bits(r, facet)).transpose()?;
            }
            None => r.check(rule, &[], &[most], &[])?,
        }
        *high = r.find(rule, most).map(|facet| bits(r, facet)).transpose()?;
    }
    if let Some(constraint) = r.find(element, constraint) {
        let longest = (WEIR, "Longest");
        r.check(constraint, &[], &[longest], &[])?;
        let longest = r.child(constraint, longest)?;
        r.check(longest, &[("", "seconds")], &[], &[])?;
        found.longest_s = Some(named(r, longest, r.required(longest, ("", "seconds"))?)?);
    }
    Ok(found)
}

/// `<xs:minInclusive value="10000"/>`, in bit/s.
fn bits(r: &Reading<'_>, facet: &Element) -> Result<BitRate> {
    r.check(facet, &[("", "value")], &[], &[])?;
    let rate = BitRate(named(r, facet, r.required(facet, ("", "value"))?)?);
    if rate > BitRate::MAX {
        let why = format!("it is more than {}", BitRate::MAX);
        return Err(r.refuse(FaultCode::RateTooLarge, facet, &why));
    }
    Ok(rate)
}

/// The state of the term of that name.
fn state_of<'e>(r: &Reading<'_>, element: &'e Element, term: &Name) -> Result<&'e Element> {
    let (term_name, state) = ((WSAG, "termName"), (WSAG, "State"));
    r.check(element, &[term_name], &[state], &[])?;
    if r.required(element, term_name)? != term.as_str() {
        let accepted = [term.to_string()];
        return Err(r.refuse_for(FaultCode::BadValue, element, "there is no such term", accepted));
    }
    r.child(element, state)
}

pub(super) fn agreement(r: &Reading<'_>, root: &Element) -> Result<Agreement> {
    let (id, offer_id) = ((WSAG, "AgreementId"), (WEIR, "OfferId"));
    let (state, service_state) = ((WSAG, "AgreementState"), (WSAG, "ServiceTermState"));
    let guarantee_state = (WSAG, "GuaranteeTermState");
    let known = [NAME, id, CONTEXT, TERMS, state, service_state];
    r.check(root, &[], &known, &[guarantee_state])?;
    let about = r.child(root, CONTEXT)?;
    let mut of_context = PARTIES.to_vec();
    let selected = (WEIR, "Selector");
    of_context.extend([IN_FORCE, offer_id, selected]);
    r.check(about, &[], &of_context, &[])?;
    let (service, terms) = terms(r, r.child(root, TERMS)?)?;
    let times = r.child(about, IN_FORCE)?;
    let (answered, from, until) = (("", "answered"), ("", "from"), ("", "until"));
    r.check(times, &[answered, from, until], &[], &[])?;

    let overall = r.child(root, state)?;
    r.check(overall, &[], &[(WSAG, "State")], &[])?;
    let overall = one_of(r, r.child(overall, (WSAG, "State"))?, &AgreementState::ALL, AgreementState::name)?;
    // A guarantee of the minimum is kept or not, whatever its name: all have one state.
    let is_guarantee = |child: &&Element| (child.space.as_str(), child.name.as_str()) == guarantee_state;
    let states: Vec<&Element> = root.children.iter().filter(is_guarantee).collect();
    let guarantees = service.guarantees.iter();
    if states.len() != guarantees.len() {
        let why =
            format!("it has {} of wsag:GuaranteeTermState for {} guarantees", states.len(), guarantees.len());
        return Err(r.refuse(FaultCode::Missing, root, &why));
    }
    let mut guarantee_state = None;
    for (element, name) in states.into_iter().zip(guarantees) {
        let element = state_of(r, element, name)?;
        let state = one_of(r, element, &GuaranteeState::ALL, GuaranteeState::name)?;
        if *guarantee_state.get_or_insert(state) != state {
            return Err(r.refuse(
                FaultCode::Contradiction,
                element,
                "the same minimum has another state above",
            ));
        }
    }
    let guarantee_state = guarantee_state.unwrap_or(GuaranteeState::NotDetermined);
    Ok(Agreement {
        id: value(r, r.child(root, id)?)?,
        state: overall,
        service_state: one_of(
            r,
            state_of(r, r.child(root, service_state)?, &service.term)?,
            &ServiceState::ALL,
            ServiceState::name,
        )?,
        guarantee_state,
        answered: named(r, times, r.required(times, answered)?)?,
        from: named(r, times, r.required(times, from)?)?,
        until: r.attribute(times, until).map(|text| named(r, times, text)).transpose()?,
        selector: selector(r, r.child(about, selected)?)?,
        offer: Offer {
            id: optional::<Name>(r, about, offer_id)?,
            name: optional(r, root, NAME)?,
            context: context(r, about)?,
            service,
            terms,
        },
    })
}
