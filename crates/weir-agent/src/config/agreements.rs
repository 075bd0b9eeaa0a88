//! `[agreements]`: the parts of the link that may be promised.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use weir_agree::{
    AgreementLedger, Context, LedgerLimits, Limits, Name, Offer, Oversubscription, Pace, Share, Split,
    Template, ThrottleLimits, Utc,
};
use weir_share::{AllocatorKind, Reservable};
use weir_units::BitRate;

use super::{
    Link,
    fault::{Fault, fault},
};

/// `[agreements]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Agreements {
    /// `U_res`, the part for agreements.
    pub(crate) reservable: Reservable,
    /// `U_oth`, the part for other traffic; `None` for 0.
    #[serde(deserialize_with = "part_or_zero")]
    pub(crate) other: Option<Reservable>,
    /// The upper bound of the sum of both.
    pub(crate) together: Reservable,
    pub(crate) share: Share,
    /// Whether traffic without an agreement is limited to `other` while an agreement is in force.
    pub(crate) other_is_ceiling: Option<bool>,
    pub(crate) oversubscription: Option<Oversubscription>,
    pub(crate) decide: Decide,
    /// The responder's name. The default is the host's name.
    pub(crate) provider: Option<Name>,
    pub(crate) most: usize,
    pub(crate) most_of_party: usize,
    pub(crate) offers_at_once: u32,
    pub(crate) offers_per_minute: u32,
    pub(crate) keep_days: u32,
    #[serde(rename = "template")]
    pub(crate) templates: Vec<Template>,
}

/// `decide = ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Decide {
    /// Admission decides.
    #[default]
    Automatic,
    /// A fitting offer waits for `weir agree accept`.
    Operator,
}

impl Default for Agreements {
    fn default() -> Agreements {
        let part = |part: f64| Reservable::new(part).ok();
        Agreements {
            reservable: part(0.90).unwrap_or_default(),
            other: part(0.05),
            together: Reservable::default(),
            share: Share::Weighted,
            other_is_ceiling: None,
            oversubscription: None,
            decide: Decide::Automatic,
            provider: None,
            most: 10_000,
            most_of_party: 1_000,
            offers_at_once: 20,
            offers_per_minute: 60,
            keep_days: 400,
            templates: Vec::new(),
        }
    }
}

fn part_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Reservable>, D::Error> {
    let part = f64::deserialize(deserializer)?;
    if part == 0.0 {
        return Ok(None);
    }
    Reservable::new(part).map(Some).map_err(serde::de::Error::custom)
}

impl Agreements {
    /// The limits of admission. `elsewhere` is the part of the reservable rate that is promised to
    /// classes without an agreement.
    pub(crate) fn limits(&self, link: &Link, elsewhere: BitRate) -> Result<Limits, weir_agree::SplitError> {
        let split = Split::new(self.reservable, self.other, self.together)?;
        let oversubscription = self.oversubscription;
        Ok(Limits { split, oversubscription, elsewhere, ..Limits::new(link.assured()) })
    }

    /// The ceiling of traffic without an agreement while one is in force, if configured.
    pub(crate) fn ceiling(&self, link: &Link) -> Option<BitRate> {
        let wanted = self.other_is_ceiling.unwrap_or(self.share == Share::Additive);
        self.other.filter(|_| wanted).map(|part| part.of(link.assured()))
    }

    /// The rate that may be promised to agreements and classes together.
    pub(crate) fn promisable(&self, link: &Link) -> BitRate {
        let own = self.reservable.of(link.assured());
        let other = self.other.map_or(BitRate::ZERO, |part| part.of(link.assured()));
        let own = own.saturating_add(if self.ceiling(link).is_some() { other } else { BitRate::ZERO });
        own.max(link.reservable.of(link.assured()))
    }

    pub(crate) fn ledger_limits(&self) -> LedgerLimits {
        let every = Duration::from_secs(60) / self.offers_per_minute.max(1);
        let party = Pace { burst: self.offers_at_once, every };
        LedgerLimits {
            agreements: self.most,
            of_account: self.most_of_party,
            throttle: ThrottleLimits { party, ..ThrottleLimits::default() },
            ..LedgerLimits::default()
        }
    }

    /// The moment before which ended agreements are forgotten.
    pub(crate) fn remembers_since(&self, now: Utc) -> Utc {
        now.before(Duration::from_secs(u64::from(self.keep_days) * 86_400))
    }
}

/// Checks the section against the link.
pub(super) fn check(agreements: &Agreements, link: &Link) -> Result<(), Fault> {
    let what = "[agreements]";
    agreements.limits(link, BitRate::ZERO).map_err(|e| {
        let mut e = fault(what, e);
        e.1 += "; `together = 1.0` allows it";
        e
    })?;
    if agreements.other_is_ceiling == Some(true) && agreements.other.is_none() {
        return Err(fault(what, "other_is_ceiling wants a part for the others: `other = 0.05`"));
    }
    if agreements.share == Share::Additive && link.allocator == AllocatorKind::Credit {
        return Err(fault(
            what,
            "share = \"additive\" and [link] allocator = \"credit\" contradict each other",
        ));
    }
    for (key, value) in [
        ("most", agreements.most),
        ("most_of_party", agreements.most_of_party),
        ("offers_at_once", agreements.offers_at_once as usize),
        ("offers_per_minute", agreements.offers_per_minute as usize),
        ("keep_days", agreements.keep_days as usize),
    ] {
        if value == 0 || value > 1_000_000 {
            return Err(fault(what, format!("{key}: {value} is not between 1 and 1000000")));
        }
    }
    for (i, template) in agreements.templates.iter().enumerate() {
        let what = format!("[[agreements.template]] {}", template.id);
        if agreements.templates[..i].iter().any(|other| other.id == template.id) {
            return Err(fault(what, "this template is there twice"));
        }
        check_template(template, agreements, link).map_err(|e| fault(what, e))?;
    }
    Ok(())
}

/// Whether a node without agreements would accept the template's own terms. Moments that have passed are no fault:
/// a good file stays good.
fn check_template(template: &Template, agreements: &Agreements, link: &Link) -> Result<(), String> {
    let limits = |link| agreements.limits(link, BitRate::ZERO).map_err(|e| e.to_string());
    let (upload, download) = (limits(link)?, link.of_download());
    let mut ledger = AgreementLedger::new(upload, LedgerLimits::default());
    ledger.set_link(upload, download.as_ref().map(limits).transpose()?);
    ledger.set_template(template.clone()).map_err(|e| e.to_string())?;
    let second = Duration::from_secs(1);
    let (mut offer, id) = (offer_of(template), &template.id);
    let now = offer.terms.start.or(offer.terms.end.map(|end| end.before(second))).unwrap_or(Utc::MIN);
    if let Some(longest) = template.constraints.longest_s {
        // A customer fills in the end.
        offer.terms.end = offer.terms.end.or(Some(now.after(second * longest)));
    }
    ledger
        .decide(&offer, id, now)
        .map(drop)
        .map_err(|why| format!("no offer by its terms is accepted: {why}"))
}

/// The template as an offer of itself.
fn offer_of(template: &Template) -> Offer {
    let Template { id, responder, service, terms, .. } = template.clone();
    let context = Context {
        initiator: responder,
        responder: None,
        expiration: None,
        template_id: Some(id),
        template_name: None,
    };
    Offer { id: None, name: None, context, service, terms }
}
