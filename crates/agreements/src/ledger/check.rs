use std::time::Duration;

use weir_units::BitRate;

use super::{Rejection, reservations::SelectorReservations};
use crate::{Bandwidth, Interval, Offer, Selector, Template, Utc};

/// The terms may not go on after the agreement. `None` is no end.
pub(super) fn check_expiration(offer: &Offer, end: Option<Utc>) -> Result<(), Rejection> {
    match offer.context.expiration {
        Some(expiration) if end.is_none_or(|end| end > expiration) => {
            Err(Rejection::EndAfterExpiration { end, expiration })
        }
        _ => Ok(()),
    }
}

/// The offers that a template allows.
pub(super) fn check_constraints(
    template: &Template,
    offer: &Offer,
    interval: Interval,
) -> Result<(), Rejection> {
    let (asked, offered) = (offer.terms.direction, template.terms.direction);
    if asked != offered {
        return Err(Rejection::DirectionOutsideTemplate { template: template.id.clone(), asked, offered });
    }
    let rules = &template.constraints;
    for (which, asked, least, most) in [
        (Bandwidth::Min, offer.terms.min, rules.min_at_least, rules.min_at_most),
        (Bandwidth::Max, offer.terms.max, None, rules.max_at_most),
    ] {
        let (least, most) = (least.unwrap_or(crate::GRAIN), most.unwrap_or(BitRate::MAX));
        if asked < least || asked > most {
            let template = template.id.clone();
            return Err(Rejection::BandwidthOutsideTemplate { template, which, asked, least, most });
        }
    }
    check_length(template, interval)
}

/// How long a template allows.
pub(super) fn check_length(template: &Template, interval: Interval) -> Result<(), Rejection> {
    let Some(longest) = template.constraints.longest_s.map(|s| Duration::from_secs(s.into())) else {
        return Ok(());
    };
    match interval.end {
        Some(end) if end.since(interval.start) <= longest => Ok(()),
        _ => Err(Rejection::TimeOutsideTemplate { template: template.id.clone(), longest }),
    }
}

/// No packets are promised twice at a time.
pub(super) fn check_claim(
    claims: &SelectorReservations,
    selector: &Selector,
    interval: Interval,
) -> Result<(), Rejection> {
    match claims.overlap(selector, interval) {
        None => Ok(()),
        Some(Interval { start: from, end: until }) => {
            Err(Rejection::SelectorTaken { selector: Box::new(selector.clone()), from, until })
        }
    }
}
