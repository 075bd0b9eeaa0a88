//! The engines, and the choice between them.

use std::{fmt, str::FromStr};

use serde::Deserialize;

use weir_bpf::fair::Mode;
use weir_netlink::Link;

use super::{
    Attachments, BpfQdisc, Credit, Edt, Engine, EngineError, Home, Htb, Place, Uplink, User, selftest,
};

/// An engine, by its name in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineKind {
    /// HTB, on any kernel.
    Htb,
    /// A BPF qdisc, kernel 6.16 and later.
    Bpf,
    /// The same qdisc with qCon's turns and credits, repaired.
    BpfCredit,
    /// The same qdisc with qCon's scheduler as the paper has it: for comparison.
    PaperCredit,
    /// Departure times and fq, kernel 5.18 and later.
    Edt,
    /// TCP is paced, credit in place holds all else; no queue and no device.
    Pacing,
    /// weir-htb in a process of its own, behind a macvtap: experimental.
    User,
    /// Credit in place alone: an experiment that shows why weir queues.
    CreditExperiment,
}

impl EngineKind {
    /// All engines that `auto` tries, in its order.
    pub const ALL: [EngineKind; 5] =
        [EngineKind::Bpf, EngineKind::Edt, EngineKind::Htb, EngineKind::BpfCredit, EngineKind::Pacing];

    /// Engines that `auto` does not try. They work, and have run for less time.
    pub const EXPERIMENTAL: [EngineKind; 1] = [EngineKind::User];

    /// Its name in answers and tables. But for [`EngineKind::PaperCredit`], `engine = ...` of the
    /// configuration takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Htb => "htb",
            EngineKind::Bpf => "bpf",
            EngineKind::BpfCredit => "bpf-credit",
            EngineKind::PaperCredit => "bpf-credit-paper",
            EngineKind::Edt => "edt",
            EngineKind::Pacing => "pacing",
            EngineKind::User => "user",
            EngineKind::CreditExperiment => "credit-experiment",
        }
    }

    /// The lines of `[link]` that choose it.
    #[must_use]
    pub fn to_toml(self) -> String {
        match self {
            EngineKind::PaperCredit => "engine = \"bpf-credit\"\nform = \"paper\"".to_owned(),
            _ => format!("engine = \"{self}\""),
        }
    }

    /// The drawback of an engine that is there to be measured.
    #[must_use]
    pub fn warning(self) -> Option<&'static str> {
        match self {
            EngineKind::CreditExperiment => Some(
                "engine credit-experiment drops instead of queueing: TCP loses a third of a LAN's link and \
                 more; it is there to be measured",
            ),
            EngineKind::PaperCredit => Some(
                "form = \"paper\" loses the credit that the last classes leave; it is there to be measured",
            ),
            _ => None,
        }
    }

    /// How the classifier of this engine must work ([`weir_bpf::ClassifierConfig::flags`]).
    #[must_use]
    pub fn programs(self) -> u32 {
        match self {
            EngineKind::Pacing | EngineKind::CreditExperiment => weir_bpf::ClassifierConfig::IN_PLACE,
            EngineKind::User => weir_bpf::ClassifierConfig::USER,
            EngineKind::Htb => weir_bpf::ClassifierConfig::WEIGHED | weir_bpf::ClassifierConfig::SPARSE,
            EngineKind::Bpf | EngineKind::BpfCredit | EngineKind::PaperCredit | EngineKind::Edt => 0,
        }
    }

    /// Whether this engine can share a device. Engine `user` hands frames to a process through a macvtap,
    /// which only a device with an Ethernet header can have.
    ///
    /// # Errors
    /// [`EngineError::Lacking`].
    pub fn takes(self, link: &Link) -> Result<(), EngineError> {
        if self != EngineKind::User || link.has_ethernet() {
            return Ok(());
        }
        let why = format!(
            "packets of {} have no Ethernet header, which its macvtap needs (use engine = \"auto\" or \"htb\")",
            link.name
        );
        Err(EngineError::Lacking { engine: self, why })
    }

    /// Whether this engine can charge packets as a line frames them. The others charge what tc counts.
    ///
    /// Sockets pace the bytes that they send, whatever the length of their packets, and credit in place is one
    /// rate of them: a framing of each packet is no rate.
    ///
    /// # Errors
    /// [`EngineError::Lacking`].
    pub fn frames(self) -> Result<(), EngineError> {
        if !matches!(self, EngineKind::Pacing | EngineKind::CreditExperiment) {
            return Ok(());
        }
        let why = "sockets that pace themselves count bytes and not packets, so framing, overhead, mpu and atm \
                   cannot be charged (use engine = \"auto\", \"bpf\", \"edt\" or \"htb\")";
        Err(EngineError::Lacking { engine: self, why: why.to_owned() })
    }

    /// Whether this engine can do so on this link. HTB charges all packets of a class the same overhead. Frames
    /// of containers have an Ethernet header on the way to an uplink without one, and the host's packets have none.
    ///
    /// # Errors
    /// [`EngineError::Lacking`].
    pub fn frames_on(self, link: &Link) -> Result<(), EngineError> {
        self.frames()?;
        if self != EngineKind::Htb || link.has_ethernet() {
            return Ok(());
        }
        let why = format!(
            "packets of {} have no Ethernet header, which htb charges of containers' packets beside a framing \
             (use engine = \"auto\", \"bpf\" or \"edt\", or leave the framing out and lower the capacity)",
            link.name
        );
        Err(EngineError::Lacking { engine: self, why })
    }

    /// Whether this engine can share several links at a time. The others are built upon the link's own device.
    ///
    /// # Errors
    /// [`EngineError::Lacking`].
    pub fn shares_several(self) -> Result<(), EngineError> {
        match self {
            EngineKind::Pacing | EngineKind::CreditExperiment | EngineKind::User => {
                let why = "it is set up on the device of one link (use engine = \"auto\", \"bpf\", \"edt\" or \"htb\", \
                           or a single [link])";
                Err(EngineError::Lacking { engine: self, why: why.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Sets this engine up for a link, or takes over the one an earlier agent left, and tells the
    /// programs of `attachments` where packets go. `queues`: transmit queues of the device, each with a
    /// lock of its own, for engines that can use them. `home`: where a scheduler in user space runs.
    ///
    /// # Errors
    /// [`EngineError`]: something this kernel lacks, missing rights, the device's name taken.
    pub fn open(
        self,
        uplink: Uplink<'_>,
        queues: u32,
        attachments: &mut Attachments,
        home: Home,
    ) -> Result<Box<dyn Engine>, EngineError> {
        let mut engine: Box<dyn Engine> = match self {
            EngineKind::Htb => Box::new(Htb::open(uplink, attachments)?),
            EngineKind::Bpf => Box::new(BpfQdisc::open(uplink, Mode::Fair)?),
            EngineKind::BpfCredit => Box::new(BpfQdisc::open(uplink, Mode::Credit)?),
            EngineKind::PaperCredit => Box::new(BpfQdisc::open(uplink, Mode::Paper)?),
            EngineKind::Edt => Box::new(Edt::open(uplink, queues)?),
            EngineKind::Pacing | EngineKind::CreditExperiment => {
                Box::new(Credit::open(uplink, self, attachments)?)
            }
            EngineKind::User => Box::new(User::open(uplink, attachments, home)?),
        };
        if self != EngineKind::User {
            User::retire()?;
        }
        if let Place::Queue(index) = engine.place() {
            // Its program would hide classes from every other scheduler.
            if self != EngineKind::Edt {
                Edt::retire(index, &uplink.upload_device())?;
            }
            if !matches!(self, EngineKind::Bpf | EngineKind::BpfCredit | EngineKind::PaperCredit) {
                BpfQdisc::retire(index, &uplink.upload_device())?;
            }
        }
        if let Some(device) = engine.device() {
            let index = device.index();
            attachments.set_scheduler(uplink.number, index)?;
        }
        Ok(engine)
    }

    /// The BPF qdisc's name when it works in this mode.
    pub(crate) fn of(mode: Mode) -> EngineKind {
        match mode {
            Mode::Fair => EngineKind::Bpf,
            Mode::Credit => EngineKind::BpfCredit,
            Mode::Paper => EngineKind::PaperCredit,
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// `engine = ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum Choice {
    /// The best that passes its self-test on this kernel.
    #[default]
    Auto,
    /// This one or none.
    Only(EngineKind),
}

/// `form = ...`: how engine `bpf-credit` hands out credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Without the paper's loss ([`EngineKind::BpfCredit`]).
    Repaired,
    /// As the paper has it ([`EngineKind::PaperCredit`]).
    Paper,
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        if text == "auto" {
            return Ok(Choice::Auto);
        }
        let usable = || EngineKind::ALL.into_iter().chain(EngineKind::EXPERIMENTAL);
        let known = usable().chain([EngineKind::CreditExperiment]).find(|kind| kind.name() == text);
        known.map(Choice::Only).ok_or_else(|| {
            let names = usable().map(EngineKind::name).collect::<Vec<_>>().join(", ");
            format!("there is no engine `{text}`: auto, {names}")
        })
    }
}

impl TryFrom<String> for Choice {
    type Error = String;

    fn try_from(text: String) -> Result<Choice, String> {
        text.parse()
    }
}

impl Choice {
    /// The same choice with a form of engine `bpf-credit`. `None` if the choice is another engine.
    #[must_use]
    pub fn in_form(self, form: Form) -> Option<Choice> {
        match (self, form) {
            (Choice::Only(EngineKind::BpfCredit), Form::Repaired) => Some(self),
            (Choice::Only(EngineKind::BpfCredit), Form::Paper) => Some(Choice::Only(EngineKind::PaperCredit)),
            _ => None,
        }
    }

    /// The engine to take. `last` is the one whose scheduler an earlier agent has left in place:
    /// it is taken again without a test, since what waits in its queues would be lost with it.
    /// Also returns what was wrong with each one that would have been better. `fits`: whether an engine can do
    /// what the configuration asks for. Others do not count.
    ///
    /// # Errors
    /// [`NoneWorks`]: traffic that an engine cuts off is worse than traffic that is not shared.
    pub fn choose(
        self,
        last: Option<&str>,
        fits: impl Fn(EngineKind) -> bool,
    ) -> Result<(EngineKind, Refused), NoneWorks> {
        match self {
            Choice::Only(kind) => Ok((kind, Refused::new())),
            Choice::Auto => {
                let mut kinds = EngineKind::ALL.to_vec();
                kinds.retain(|kind| fits(*kind));
                choose(last, &kinds, |kind| selftest::run(kind).map(drop))
            }
        }
    }
}

/// Engines that were not taken, and why.
pub type Refused = Vec<(EngineKind, String)>;

/// No engine passed its self-test.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no engine works here: {}", .0.iter().map(|(kind, why)| format!("{kind}: {why}")).collect::<Vec<_>>().join("; "))]
pub struct NoneWorks(Refused);

/// The first of `kinds` that passes `test`; else the first that lets traffic through, but not
/// as it should: a machine too busy for a self-test is no reason not to share its link.
fn choose(
    last: Option<&str>,
    kinds: &[EngineKind],
    test: impl Fn(EngineKind) -> Result<(), selftest::Failure>,
) -> Result<(EngineKind, Refused), NoneWorks> {
    if let Some(&kind) = kinds.iter().find(|kind| Some(kind.name()) == last) {
        return Ok((kind, Refused::new()));
    }
    let (mut refused, mut second) = (Refused::new(), None);
    for &kind in kinds {
        match test(kind) {
            Ok(()) => return Ok((kind, refused)),
            Err(why) => {
                // Without the right to try, what every kernel has is the best guess.
                let untried = kind == EngineKind::Htb && matches!(why, selftest::Failure::Namespace(_));
                if untried || matches!(why, selftest::Failure::Unfair(_)) {
                    second = second.or(Some(kind));
                }
                refused.push((kind, why.to_string()));
            }
        }
    }
    match second {
        Some(kind) => Ok((kind, refused)),
        None => Err(NoneWorks(refused)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_a_name_that_reads_back() {
        for kind in EngineKind::ALL.into_iter().chain([EngineKind::User, EngineKind::CreditExperiment]) {
            assert_eq!(kind.name().parse(), Ok(Choice::Only(kind)));
        }
        assert_eq!("auto".parse(), Ok(Choice::Auto));
        let error = Choice::from_str("cbq").unwrap_err();
        assert!(error.starts_with("there is no engine `cbq`: auto, ") && error.contains("htb"), "{error}");
    }

    #[test]
    fn form_of_the_paper_is_one_of_bpf_credit_alone() {
        let credit = Choice::Only(EngineKind::BpfCredit);
        assert_eq!(credit.in_form(Form::Paper), Some(Choice::Only(EngineKind::PaperCredit)));
        assert_eq!(credit.in_form(Form::Repaired), Some(credit));
        for other in [Choice::Auto, Choice::Only(EngineKind::Bpf), Choice::Only(EngineKind::Htb)] {
            assert_eq!(other.in_form(Form::Paper), None, "{other:?}");
        }
        assert!(Choice::from_str("bpf-credit-paper").is_err(), "it is a form, and no engine of its own");
    }

    #[test]
    fn auto_takes_the_first_engine_that_works_and_says_why() {
        let fails = |_| Err(selftest::Failure::NoTraffic);
        assert_eq!(choose(None, &EngineKind::ALL, |_| Ok(())), Ok((EngineKind::ALL[0], Refused::new())));
        let last_only = |kind| if Some(&kind) == EngineKind::ALL.last() { Ok(()) } else { fails(kind) };
        let (kind, refused) = choose(None, &EngineKind::ALL, last_only).unwrap();
        assert_eq!((Some(&kind), refused.len()), (EngineKind::ALL.last(), EngineKind::ALL.len() - 1));
    }

    #[test]
    fn engine_that_cuts_traffic_off_is_never_taken_a_late_one_is() {
        let error = choose(None, &EngineKind::ALL, |_| Err(selftest::Failure::NoTraffic)).unwrap_err();
        assert!(error.to_string().contains("htb: nothing comes through it"), "{error}");
        let shares = selftest::Shares { measured: [9.0, 9.0], expected: [6.0, 18.0] };
        let busy = |kind| match kind {
            EngineKind::Bpf => Err(selftest::Failure::NoTraffic),
            _ => Err(selftest::Failure::Unfair(shares)),
        };
        let (kind, refused) = choose(None, &EngineKind::ALL, busy).unwrap();
        assert_eq!((kind, refused.len()), (EngineKind::Edt, EngineKind::ALL.len()));
    }

    #[test]
    fn auto_takes_departure_times_before_htb_where_both_work() {
        let no_bpf = |kind| if kind == EngineKind::Bpf { Err(selftest::Failure::NoTraffic) } else { Ok(()) };
        assert_eq!(choose(None, &EngineKind::ALL, no_bpf).unwrap().0, EngineKind::Edt);
    }

    #[test]
    fn an_engine_that_an_earlier_agent_used_is_kept_untested() {
        let never = |kind| -> Result<(), selftest::Failure> { panic!("{kind} was tested") };
        assert_eq!(choose(Some("htb"), &EngineKind::ALL, never), Ok((EngineKind::Htb, Refused::new())));
    }
}
