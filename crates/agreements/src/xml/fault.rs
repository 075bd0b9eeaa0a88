//! Faults as WS-Agreement wants them: a `wsag:ContinuingFault` is a base fault of WSRF, whose
//! extensions come first.

use super::{WEIR, WSAG, encode::Out, in_units};
use crate::{CounterOffer, Fault, Utc};

/// WS-BaseFaults 1.2.
const WSRF_BF: &str = "http://docs.oasis-open.org/wsrf/bf-2";

/// Writes a fault of that time.
pub(crate) fn write_fault(fault: &Fault, now: Utc) -> String {
    let mut out = Out::new();
    let spaces = [("xmlns:wsag", WSAG), ("xmlns:wsrf-bf", WSRF_BF), ("xmlns:weir", WEIR)];
    out.element("wsag:ContinuingFault", &spaces, |out| {
        if let Some(place) = &fault.at {
            let [line, column] = [place.line, place.column].map(|n| n.map(|n| n.to_string()));
            let mut attributes = vec![("what", place.what.as_str())];
            attributes.extend(line.as_deref().map(|line| ("line", line)));
            attributes.extend(column.as_deref().map(|column| ("column", column)));
            out.empty("weir:Place", &attributes);
        }
        for accepted in &fault.accepted {
            out.leaf("weir:Accepted", &[], accepted);
        }
        if let Some(counter) = &fault.counter_offer {
            out.element("weir:CounterOffer", &[], |out| counter_offer(out, counter));
        }
        out.optional("weir:RetryAfterMs", fault.retry_after_ms);
        out.leaf("wsrf-bf:Timestamp", &[], now);
        out.leaf("wsrf-bf:ErrorCode", &[("dialect", WEIR)], fault.code);
        out.leaf("wsrf-bf:Description", &[("xml:lang", "en")], &fault.message);
    });
    out.finish()
}

fn counter_offer(out: &mut Out, counter: &CounterOffer) {
    for (name, rate) in [("weir:Min", counter.min), ("weir:Max", counter.max)] {
        if let Some(rate) = rate {
            let (number, unit) = in_units(rate);
            out.leaf(name, &[("unit", unit)], number);
        }
    }
    out.optional("weir:Start", counter.start);
    out.optional("weir:StartNotBefore", counter.start_not_before);
    out.optional("weir:End", counter.end);
}
