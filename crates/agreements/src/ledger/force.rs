use weir_share::Weight;
use weir_units::BitRate;

use crate::{Agreement, Directions, Name, Selector, Share, Usage, Utc};

/// The policy to enforce for an agreement at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce<'a> {
    /// The agreement's id.
    pub id: &'a Name,
    /// Which packets.
    pub selector: &'a Selector,
    /// The directions.
    pub direction: Directions,
    /// How it shares the spare.
    pub share: Share,
    /// With [`Share::Weighted`].
    pub weight: Weight,
    /// The guarantee at that moment.
    pub min: BitRate,
    /// The ceiling at that moment.
    pub max: BitRate,
    /// Until when the quota is used up, if it is; then `max` is the quota's and `min` not above.
    pub limited_until: Option<Utc>,
}

/// The policy to enforce for an agreement under which `usage` was sent; none outside of its time.
pub(super) fn in_force<'a>(agreement: &'a Agreement, usage: &Usage, at: Utc) -> Option<InForce<'a>> {
    let Agreement { id, selector, offer, .. } = agreement;
    if !agreement.interval().contains(at) {
        return None;
    }
    let terms = &offer.terms;
    let limited = terms.quota.and_then(|quota| Some((quota.after, quota.used_up_until(usage, at)?)));
    let max = limited.map_or(terms.max, |(after, _)| after.min(terms.max));
    Some(InForce {
        id,
        selector,
        direction: terms.direction,
        share: terms.share,
        weight: terms.weight,
        min: terms.min.min(max),
        max,
        limited_until: limited.map(|(_, until)| until),
    })
}
