//! WS-Agreement XML (GFD.192), with the paper's terms (Fig. 2) and weir's own beside them.
//!
//! Prefixes are free, namespaces count:
//!
//! * [`WSAG`]: WS-Agreement's own elements and attributes.
//! * [`QOS`]: `ServerParams` with `NetMinBandwidth` and `NetMaxBandwidth`, as in Fig. 2.
//! * [`WEIR`]: what the paper has no word for, inside of `ServerParams`, the context, the
//!   constraints and faults.
//!
//! * [`WSA`]: the address of the service, in `ServiceReference`.
//!
//! Terms of other makers are read as far as their meaning is kept (`terms.rs`). An unknown element is refused, at any
//! place: a term that is not understood cannot be promised.
//! `xsi:schemaLocation` alone is passed over.

mod decode;
mod encode;
mod fault;
mod service;
mod terms;
mod tree;

use weir_units::BitRate;

use crate::{Agreement, Fault, Offer, Template};

pub(crate) use fault::write_fault;
pub(crate) use terms::usual_guarantee;

/// WS-Agreement 1.0.
pub const WSAG: &str = "http://schemas.ggf.org/graap/2007/03/ws-agreement";
/// The paper's terms.
pub const QOS: &str = "schemas.webqos";
/// weir's terms.
pub const WEIR: &str = "urn:weir:agreement:1";
/// WS-Addressing 1.0, in references to services.
pub const WSA: &str = "http://www.w3.org/2005/08/addressing";
/// XML Schema, in constraints.
const XS: &str = "http://www.w3.org/2001/XMLSchema";

/// The name of the term that guarantees the minimum, in documents that name none.
const GUARANTEE: &str = "net_min_bandwidth";

/// The units of bandwidth, largest first among those that share a factor.
const UNITS: [(&str, u64); 7] = [
    ("Gbps", 1_000_000_000),
    ("Mbps", 1_000_000),
    ("Gibps", 1 << 30),
    ("Mibps", 1 << 20),
    ("Kbps", 1_000),
    ("Kibps", 1 << 10),
    ("bps", 1),
];

/// Number and unit that say a rate exactly, in the largest unit that does.
fn in_units(rate: BitRate) -> (u64, &'static str) {
    UNITS
        .into_iter()
        .find(|(_, scale)| rate.0 >= *scale && rate.0.is_multiple_of(*scale))
        .map_or((rate.0, "bps"), |(unit, scale)| (rate.0 / scale, unit))
}

/// The content that XML is written from and read into.
pub trait XmlDocument: Sized {
    #[doc(hidden)]
    const ROOT: &'static str;
    #[doc(hidden)]
    fn decode(root: &Root<'_>) -> Result<Self, Fault>;
    #[doc(hidden)]
    fn encode(&self, out: &mut Out);
}

#[doc(hidden)]
pub struct Root<'a>(tree::Reading<'a>, &'a tree::Element);
#[doc(hidden)]
pub struct Out(encode::Out);

macro_rules! document {
    ($type:ty, $root:literal, $decode:path, $encode:path) => {
        impl XmlDocument for $type {
            const ROOT: &'static str = $root;
            fn decode(root: &Root<'_>) -> Result<Self, Fault> {
                $decode(&root.0, root.1)
            }
            fn encode(&self, out: &mut Out) {
                $encode(self, &mut out.0);
            }
        }
    };
}

document!(Template, "Template", decode::template, encode::template);
document!(Offer, "AgreementOffer", decode::offer, encode::offer);
document!(Agreement, "AgreementProperties", decode::agreement, encode::agreement);

/// Reads a document whose size was tested.
pub(crate) fn read<T: XmlDocument>(text: &str) -> Result<T, Fault> {
    let reading = tree::Reading(text);
    let root = tree::parse(reading)?;
    reading.expect_root(&root, T::ROOT)?;
    T::decode(&Root(reading, &root))
}

pub(crate) fn write<T: XmlDocument>(document: &T) -> String {
    let mut out = Out(encode::Out::new());
    document.encode(&mut out);
    out.0.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_written_in_the_largest_unit_that_says_it_exactly() {
        for (rate, want) in [
            (19_000_000, (19, "Mbps")),
            (1_000_000_000, (1, "Gbps")),
            (1_500_000_000, (1_500, "Mbps")),
            (1 << 20, (1, "Mibps")),
            (10_240, (10, "Kibps")),
            (10_000, (10, "Kbps")),
            (10_001, (10_001, "bps")),
            (0, (0, "bps")),
        ] {
            assert_eq!(in_units(BitRate(rate)), want);
        }
    }
}
