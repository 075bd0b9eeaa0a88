//! The kinds of events and the codes of errors.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Makes an enumeration whose JSON form is a word.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// A word that this version does not know.
            Other(String),
        }

        impl $name {
            /// The word in JSON.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $word,)*
                    $name::Other(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> $name {
                match word {
                    $($word => $name::$variant,)*
                    _ => $name::Other(word.to_owned()),
                }
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, word: &&str) -> bool {
                self.as_str() == *word
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            /// A later agent may know more words.
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "examples": [$($word),*] })
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                String::deserialize(deserializer).map(|word| $name::from(word.as_str()))
            }
        }
    };
}

words! {
    /// The kind of an [`Actor`](crate::Actor).
    ActorKind {
        /// The agent itself.
        Agent = "agent",
        /// The advice of congestion control.
        Advice = "advice",
        /// The calendar of an agreement.
        Calendar = "calendar",
        /// A configuration file.
        Configuration = "configuration",
        /// A container or pod: it came, went, or its labels asked.
        Container = "container",
        /// A token of the API over TCP.
        Token = "token",
        /// A user of this node.
        User = "user",
    }
}

words! {
    /// The kind of a changed value.
    ChangeKind {
        /// An agreement.
        Agreement = "agreement",
        /// A policy set by hand.
        ByHand = "by-hand",
        /// The same of what arrives.
        ByHandDown = "by-hand-down",
        /// A capacity of the link.
        Capacity = "capacity",
        /// A key of the configuration.
        Configuration = "configuration",
        /// A rule of congestion control that was set at run time.
        Congestion = "congestion",
        /// A pin of the image cache.
        Pin = "pin",
        /// A policy in force.
        Policy = "policy",
        /// The same of what arrives.
        PolicyDown = "policy-down",
        /// A token of the API over TCP.
        Token = "token",
    }
}

words! {
    /// The routes that the bearer of a token may use.
    TokenScope {
        /// All.
        Admin = "admin",
        /// See everything, and change policies, rules and images.
        Operate = "operate",
        /// Make, see, renew and end the agreements of one party.
        Party = "party",
        /// See everything.
        Read = "read",
    }
}

words! {
    /// The kind of an [`Event`](crate::Event).
    EventKind {
        /// An operator has read the notices of the stored state.
        Acknowledged = "acknowledged",
        /// A trial of a congestion control has a result.
        Advice = "advice",
        /// An agreement is accepted.
        AgreementAccepted = "agreement-accepted",
        /// An agreement is in force.
        AgreementActivated = "agreement-activated",
        /// The term of an agreement is over.
        AgreementExpired = "agreement-expired",
        /// An offer waits for an operator's decision.
        AgreementPending = "agreement-pending",
        /// A quota begins again: a day or a month has begun, or the agreement is over.
        AgreementQuotaBack = "agreement-quota-back",
        /// The quota of an agreement is used up.
        AgreementQuotaUsedUp = "agreement-quota-used-up",
        /// An offer is rejected.
        AgreementRejected = "agreement-rejected",
        /// The end of an agreement changed.
        AgreementRenewed = "agreement-renewed",
        /// An agreement is ended, and its bandwidth is free.
        AgreementTerminated = "agreement-terminated",
        /// The capacity of the link changed.
        CapacityChanged = "capacity-changed",
        /// A class is here.
        ClassAdded = "class-added",
        /// A class is gone.
        ClassRemoved = "class-removed",
        /// The clock agrees with the agent's own again.
        ClockBack = "clock-back",
        /// The agent follows a step of the clock.
        ClockBelieved = "clock-believed",
        /// The clock made a step that the agent does not follow yet.
        ClockDoubted = "clock-doubted",
        /// A changed configuration is refused; the old one stays in force.
        ConfigRefused = "config-refused",
        /// A better engine was not taken.
        Engine = "engine",
        /// A program or filter of others runs before weir's, or none does any more.
        ForeignProgram = "foreign-program",
        /// A guarantee of an agreement holds again.
        GuaranteeRestored = "guarantee-restored",
        /// A guarantee of an agreement is violated.
        GuaranteeViolated = "guarantee-violated",
        /// The image cache found a corrupt blob.
        ImageCorrupt = "image-corrupt",
        /// The image cache does not serve.
        ImageDown = "image-down",
        /// The image cache did not answer itself in time.
        ImageFrozen = "image-frozen",
        /// The images of a container runtime are above their budget, and none of them may go.
        ImageOverBudget = "image-over-budget",
        /// An image of a container runtime was removed.
        ImageRemoved = "image-removed",
        /// The image cache serves again.
        ImageUp = "image-up",
        /// An image of a container runtime would be removed, but for `dry_run`.
        ImageWouldGo = "image-would-go",
        /// A wish of a container, by label, annotation or CNI, is cut by `[labels]` or ignored.
        LabelCut = "label-cut",
        /// The link was renamed, is gone, is back, is up or is down, or another link is the main one.
        Link = "link",
        /// The reader was too slow for some events.
        Lost = "lost",
        /// A part of a policy is not enforced.
        NotEnforced = "not-enforced",
        /// The policy of a class changed.
        PolicyChanged = "policy-changed",
        /// A minimum is promised that was not promised before.
        Promised = "promised",
        /// A changed configuration is in force.
        Reloaded = "reloaded",
        /// The agent undid a foreign change to the kernel or to its socket.
        Repaired = "repaired",
        /// A rule of congestion control was set.
        RuleSet = "rule-set",
        /// A rule of congestion control was removed.
        RuleUnset = "rule-unset",
        /// The agent started.
        Started = "started",
        /// The stored state was damaged.
        StateDamaged = "state-damaged",
        /// The agent stops.
        Stopping = "stopping",
    }
}

words! {
    /// The class of an [`Error`](crate::Error).
    ErrorCode {
        /// Several classes have that name.
        AmbiguousName = "ambiguous-name",
        /// The route does not take that method.
        BadMethod = "bad-method",
        /// The request contradicts itself or a rule.
        BadRequest = "bad-request",
        /// The agent has no time or no place for the request now.
        Busy = "busy",
        /// The kernel or the store refused the change.
        Engine = "engine",
        /// The caller's rights do not include the request.
        Forbidden = "forbidden",
        /// The minimum does not fit.
        NoCapacity = "no-capacity",
        /// The configuration has no image cache.
        NoImages = "no-images",
        /// The image is pinned.
        Pinned = "pinned",
        /// The agent stops.
        Stopping = "stopping",
        /// The image cache's store refused the change.
        Store = "store",
        /// The body is too large.
        TooLarge = "too-large",
        /// There is no such class, image, rule or check.
        UnknownName = "unknown-name",
        /// There is no such route.
        UnknownRoute = "unknown-route",
        /// The caller must wait before it asks again.
        TooManyRequests = "too-many-requests",
        /// The caller has no token, or one that is not taken.
        Unauthorized = "unauthorized",
    }
}

words! {
    /// The kind of reason why a class is not enforced.
    NotEnforced {
        /// An interface of the class is not caught yet.
        Interface = "interface",
        /// weir's program cannot be attached to an interface of the class.
        Program = "program",
        /// The scheduler has a fault, and no class is enforced.
        Scheduler = "scheduler",
        /// The classes have more kinds of selectors than weir tells apart.
        SelectorKinds = "selector-kinds",
        /// Selectors select nothing.
        Selectors = "selectors",
        /// The packets of the sender cannot be told apart, or the sender is not here.
        Sender = "sender",
        /// The minimum that is asked for is not promised.
        Unpromised = "unpromised",
        /// A wish of the class that weir does not enforce.
        Unsupported = "unsupported",
        /// The host's own traffic is not shared.
        Uplink = "uplink",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_newer_agent_is_kept_as_it_is() {
        let kind: EventKind = serde_json::from_str("\"class-moved\"").unwrap();
        assert_eq!(kind, EventKind::Other("class-moved".to_owned()));
        assert_eq!(serde_json::to_string(&kind).unwrap(), "\"class-moved\"");
    }

    #[test]
    fn a_known_word_is_read_as_its_kind() {
        let code: ErrorCode = serde_json::from_str("\"no-capacity\"").unwrap();
        assert_eq!(code, ErrorCode::NoCapacity);
        assert_eq!(serde_json::to_string(&code).unwrap(), "\"no-capacity\"");
        assert_eq!(format!("{:<14}|", EventKind::Lost), "lost          |");
    }
}
