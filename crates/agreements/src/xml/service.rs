//! A service description, as in the paper's Fig. 2, and the values of elements.

use std::{fmt::Display, str::FromStr};

use weir_share::Weight;
use weir_units::{BitRate, ParseRateError};

use super::{
    QOS, UNITS, WEIR, WSAG,
    tree::{Element, Q, Reading},
};
use crate::{Fault, FaultCode, Name, Quota, Selector, Share, Terms};

type Result<T> = std::result::Result<T, Fault>;

pub(super) const NAME: Q = (WSAG, "Name");

/// The text of an element as a value.
pub(super) fn value<T: FromStr<Err: Display>>(reading: &Reading<'_>, element: &Element) -> Result<T> {
    let text = reading.text(element, &[])?;
    text.parse().map_err(|error: T::Err| reading.refuse(FaultCode::BadValue, element, &error.to_string()))
}

/// The value of a child, if there is one.
pub(super) fn optional<T: FromStr<Err: Display>>(
    r: &Reading<'_>,
    element: &Element,
    name: Q,
) -> Result<Option<T>> {
    r.find(element, name).map(|child| value(r, child)).transpose()
}

pub(super) fn named<T: FromStr<Err: Display>>(r: &Reading<'_>, element: &Element, text: &str) -> Result<T> {
    text.parse().map_err(|error: T::Err| r.refuse(FaultCode::BadValue, element, &error.to_string()))
}

/// `<qos:NetMinBandwidth unit="Mbps"> 19 </qos:NetMinBandwidth>`
fn bandwidth(r: &Reading<'_>, element: &Element) -> Result<BitRate> {
    let number = r.text(element, &[("", "unit")])?;
    let unit = r.required(element, ("", "unit"))?;
    let refuse = |code, why: &str| r.refuse(code, element, why);
    if !UNITS.iter().any(|(known, _)| *known == unit) {
        let shown: String = unit.chars().take(32).collect();
        let units = UNITS.iter().map(|(unit, _)| (*unit).to_owned());
        return Err(r.refuse_for(
            FaultCode::UnknownUnit,
            element,
            &format!("the unit `{shown}` is not known"),
            units,
        ));
    }
    let digits = number.strip_prefix('-').unwrap_or(number);
    let shown: String = number.chars().take(32).collect();
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit() || c == '.') {
        let why = format!("`{shown}` is not a number (digits, with at most one point)");
        return Err(refuse(FaultCode::NotANumber, &why));
    }
    format!("{number}{unit}").parse().map_err(|error| match error {
        ParseRateError::Negative(_) => {
            refuse(FaultCode::Negative, &format!("`{shown}` is below zero, a bandwidth is not"))
        }
        ParseRateError::TooLarge(_) => {
            refuse(FaultCode::RateTooLarge, &format!("`{shown}` {unit} is more than {}", BitRate::MAX))
        }
        ParseRateError::Syntax(_) => refuse(
            FaultCode::NotANumber,
            &format!("`{shown}` is not a number (digits, with at most one point)"),
        ),
    })
}

/// The paper's Fig. 2: the term's name, the service's name, and the terms.
pub(super) fn service_description(r: &Reading<'_>, sdt: &Element) -> Result<(Name, Name, Terms)> {
    let (name, service) = (NAME, (WSAG, "ServiceName"));
    let params = (QOS, "ServerParams");
    r.check(sdt, &[name, service], &[params], &[])?;
    let term = named(r, sdt, r.required(sdt, name)?)?;
    let service = named(r, sdt, r.required(sdt, service)?)?;
    let params = r.child(sdt, params)?;
    let (min, max) = ((QOS, "NetMinBandwidth"), (QOS, "NetMaxBandwidth"));
    let (start, end, share) = ((WEIR, "Start"), (WEIR, "End"), (WEIR, "Share"));
    let direction = (WEIR, "Direction");
    let (selector_name, quota_name) = ((WEIR, "Selector"), (WEIR, "Quota"));
    r.check(params, &[], &[min, max, start, end, direction, share, selector_name, quota_name], &[])?;
    let (share, weight) = match r.find(params, share) {
        Some(element) => {
            let share = named(r, element, r.text(element, &[("", "weight")])?)?;
            let weight = r.attribute(element, ("", "weight")).map(|text| named(r, element, text));
            (share, weight.transpose()?.unwrap_or(Weight::ONE))
        }
        None => (Share::default(), Weight::ONE),
    };
    let terms = Terms {
        min: bandwidth(r, r.child(params, min)?)?,
        max: bandwidth(r, r.child(params, max)?)?,
        start: optional(r, params, start)?,
        end: optional(r, params, end)?,
        direction: optional(r, params, direction)?.unwrap_or_default(),
        share,
        weight,
        selector: r.find(params, selector_name).map(|s| selector(r, s)).transpose()?.unwrap_or_default(),
        quota: r.find(params, quota_name).map(|q| quota(r, q)).transpose()?,
    };
    Ok((term, service, terms))
}

pub(super) fn selector(r: &Reading<'_>, element: &Element) -> Result<Selector> {
    let (container, protocol) = ((WEIR, "Container"), (WEIR, "Protocol"));
    let (source, destination) = ((WEIR, "SourcePort"), (WEIR, "DestinationPort"));
    let (subnet, dscp) = ((WEIR, "Subnet"), (WEIR, "Dscp"));
    r.check(element, &[], &[container, protocol, source, destination, subnet, dscp], &[])?;
    Ok(Selector {
        container: optional(r, element, container)?,
        protocol: optional(r, element, protocol)?,
        source_port: optional(r, element, source)?,
        destination_port: optional(r, element, destination)?,
        subnet: optional(r, element, subnet)?,
        dscp: optional(r, element, dscp)?,
    })
}

fn quota(r: &Reading<'_>, element: &Element) -> Result<Quota> {
    let (day, month, after) = ((WEIR, "Day"), (WEIR, "Month"), (WEIR, "After"));
    r.check(element, &[], &[day, month, after], &[])?;
    Ok(Quota {
        day: optional(r, element, day)?,
        month: optional(r, element, month)?,
        after: bandwidth(r, r.child(element, after)?)?,
    })
}
