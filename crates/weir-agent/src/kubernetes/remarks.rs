//! The events that pods get: each text once, and few of them. It does no I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use weir_units::Instant;

/// A text must hold this long: a pod that starts is not caught yet, which is no fault.
const HOLDS_AFTER: Duration = Duration::from_secs(3);
/// The pause between two texts of one reason and pod.
const PAUSE: Duration = Duration::from_secs(600);
/// The most events at once, and the time after which one more may be written.
const BURST: u32 = 20;
const REFILL: Duration = Duration::from_secs(3);
/// The pause before a text that could not be written is handed out again.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// The longest time that a server takes for an answer, with its connection.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest text of an event, bytes.
const LONGEST: usize = 1_000;

/// The reason of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reason {
    /// An annotation is ignored or cut.
    Ignored,
    /// A part of the policy is not in force.
    NotEnforced,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Ignored => "WeirIgnored",
            Reason::NotEnforced => "WeirNotEnforced",
        })
    }
}

/// A text about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remark {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) reason: Reason,
    pub(crate) text: String,
}

/// A reason of a pod.
#[derive(Debug)]
struct Said {
    text: String,
    /// Since when the text holds.
    since: Instant,
    /// The last text that was handed out and not taken back, and when.
    written: Option<(String, Instant)>,
    /// The moment from which a text that was taken back is handed out again.
    retry: Option<Instant>,
}

/// The remarks that hold, and those that were written.
#[derive(Debug)]
pub(crate) struct Remarks {
    said: BTreeMap<(String, Reason), Said>,
    /// Events that may be written now.
    free: u32,
    refilled: Instant,
}

impl Default for Remarks {
    fn default() -> Remarks {
        Remarks { said: BTreeMap::new(), free: BURST, refilled: Instant::default() }
    }
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST - 3).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

impl Remarks {
    /// Takes the remarks that hold now about the pods that are `alive` (their uids), one for each pod and reason.
    /// Returns those that are to be written.
    pub(crate) fn due(
        &mut self,
        holding: Vec<Remark>,
        alive: &BTreeSet<String>,
        now: Instant,
    ) -> Vec<Remark> {
        let refills = now.since(self.refilled).as_secs() / REFILL.as_secs();
        if refills > 0 {
            self.free = self.free.saturating_add(u32::try_from(refills).unwrap_or(u32::MAX)).min(BURST);
            self.refilled = now;
        }
        self.said.retain(|(uid, _), _| alive.contains(uid));
        let held: BTreeSet<(String, Reason)> = holding.iter().map(|r| (r.uid.clone(), r.reason)).collect();
        // A text that no longer holds begins again.
        for (key, said) in &mut self.said {
            if !held.contains(key) {
                said.text.clear();
                said.retry = None;
            }
        }
        let mut due = Vec::new();
        for mut remark in holding {
            remark.text = cut(remark.text);
            let key = (remark.uid.clone(), remark.reason);
            let fresh = || Said { text: String::new(), since: now, written: None, retry: None };
            let said = self.said.entry(key).or_insert_with(fresh);
            if said.text != remark.text {
                said.text.clone_from(&remark.text);
                said.since = now;
            }
            let is_new = said
                .written
                .as_ref()
                .is_none_or(|(text, at)| *text != remark.text && now.since(*at) >= PAUSE);
            let is_time = said.retry.is_none_or(|retry| now >= retry);
            if is_new && is_time && now.since(said.since) >= HOLDS_AFTER && self.free > 0 {
                self.free -= 1;
                // It is unwritten until the server has had time to answer.
                said.retry = said.retry.map(|_| Instant(now.0 + ANSWER));
                said.written = Some((remark.text.clone(), now));
                due.push(remark);
            }
        }
        due
    }

    /// Takes a text back that could not be written. It is handed out again if it still holds.
    pub(crate) fn take_back(&mut self, remark: &Remark, now: Instant) {
        if let Some(said) = self.said.get_mut(&(remark.uid.clone(), remark.reason))
            && said.written.as_ref().is_some_and(|(text, _)| *text == remark.text)
        {
            said.written = None;
            said.retry = Some(Instant(now.0 + RETRY_PAUSE));
        }
    }

    /// Whether a text waits that could not be written, or is being written again.
    pub(crate) fn has_unwritten(&self, now: Instant) -> bool {
        let waits = |said: &Said| said.retry.is_some_and(|retry| said.written.is_none() || now < retry);
        self.said.values().any(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remark(uid: &str, reason: Reason, text: &str) -> Remark {
        let (namespace, name) = ("shop".to_owned(), format!("p-{uid}"));
        Remark { namespace, name, uid: uid.to_owned(), reason, text: text.to_owned() }
    }

    fn at(s: u64) -> Instant {
        Instant(Duration::from_secs(s))
    }

    #[test]
    fn a_text_becomes_an_event_once_it_holds_and_only_once() {
        let alive: BTreeSet<String> = ["a".to_owned()].into();
        let mut remarks = Remarks::default();
        let mut due = |s, text: &str| {
            let holding = if text.is_empty() { vec![] } else { vec![remark("a", Reason::NotEnforced, text)] };
            remarks.due(holding, &alive, at(s)).len()
        };
        assert_eq!(due(0, "no interface"), 0, "it may pass");
        assert_eq!(due(2, ""), 0);
        assert_eq!(due(3, "no interface"), 0, "it began again");
        assert_eq!(due(6, "no interface"), 1);
        assert_eq!(due(9, "no interface"), 0);
        assert_eq!(due(10, "5mbit are free"), 0);
        assert_eq!(due(20, "6mbit are free"), 0, "a figure that changes is no news");
        assert_eq!(due(606, "6mbit are free"), 1, "but is after 10 minutes");
        assert_eq!(due(2_000, "6mbit are free"), 0);
    }

    #[test]
    fn a_text_that_was_not_written_is_handed_out_while_it_holds() {
        let alive: BTreeSet<String> = ["a".to_owned()].into();
        let mut remarks = Remarks::default();
        let full = || vec![remark("a", Reason::NotEnforced, "5mbit are free")];
        assert_eq!(remarks.due(full(), &alive, at(0)), []);
        for s in [3, 13, 23] {
            assert_eq!(remarks.due(full(), &alive, at(s)).len(), 1, "{s}");
            assert_eq!(remarks.has_unwritten(at(s)), s > 3, "the server may fail again");
            remarks.take_back(&full()[0], at(s));
            assert!(remarks.has_unwritten(at(s)));
            assert_eq!(remarks.due(full(), &alive, at(s + 9)), [], "the server has a pause");
        }
        assert_eq!(remarks.due(full(), &alive, at(33)).len(), 1);
        assert!(remarks.has_unwritten(at(33)) && !remarks.has_unwritten(at(63)), "it has answered by then");
        remarks.take_back(&full()[0], at(33));
        // It no longer holds, so nothing waits.
        assert_eq!(remarks.due(vec![], &alive, at(34)), []);
        assert!(!remarks.has_unwritten(at(34)));
        assert_eq!(remarks.due(full(), &alive, at(40)), []);
        assert_eq!(remarks.due(full(), &alive, at(43)).len(), 1);
        assert_eq!(remarks.due(full(), &alive, at(60)), [], "it is written");
    }

    #[test]
    fn one_pod_cannot_use_up_the_events_of_others_for_long() {
        let alive: BTreeSet<String> = (0..100).map(|n| format!("{n}")).collect();
        let all = || -> Vec<Remark> {
            (0..100).map(|n| remark(&n.to_string(), Reason::Ignored, &"ä".repeat(2_000))).collect()
        };
        let mut remarks = Remarks::default();
        assert_eq!(remarks.due(all(), &alive, at(0)).len(), 0);
        let first = remarks.due(all(), &alive, at(4));
        assert_eq!(first.len(), BURST as usize);
        assert!(first[0].text.len() <= LONGEST && first[0].text.ends_with("ä..."), "{}", first[0].text.len());
        let mut written = first.len();
        for s in 5..305 {
            written += remarks.due(all(), &alive, at(s)).len();
        }
        assert_eq!(written, 100, "each of them, one in 3 s");
        // The knowledge of pods ends with them.
        remarks.due(vec![], &BTreeSet::new(), at(400));
        assert_eq!(remarks.said.len(), 0);
    }
}
