//! `[access]`: the rights of users at the agent's socket.

use std::{collections::BTreeMap, str::FromStr};

use nix::{
    errno::Errno,
    unistd::{Group, User},
};
use serde::{Deserialize, Deserializer};

/// A right of a caller. Each right includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// See classes, links, agreements, images, rules, events, history and metrics.
    Read,
    /// Make agreements, and end or renew one's own.
    Own,
    /// Change policies, capacities, rules of congestion control and images. Report pods, plan, and ask the doctor.
    Operate,
    /// Decide on the agreements of others, acknowledge notices of the state, and make tokens.
    Admin,
}

impl Right {
    /// Its key in `[access]`.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Own => "own",
            Right::Operate => "operate",
            Right::Admin => "admin",
        }
    }
}

/// A user, or a group after `@`, by name or number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    is_group: bool,
    name: String,
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Subject, String> {
        let (is_group, name) = text.strip_prefix('@').map_or((false, text), |name| (true, name));
        let ok = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if name.is_empty() || name.len() > 255 || !name.chars().all(ok) {
            return Err(format!(
                "cannot read `{text}` as a user: write alice or 1000, or @staff for a group"
            ));
        }
        Ok(Subject { is_group, name: name.to_owned() })
    }
}

impl<'de> Deserialize<'de> for Subject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Subject, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Subject {
    /// The number of the user or group; `None` if the system does not know the name.
    fn id(&self) -> Result<Option<u32>, String> {
        if let Ok(id) = self.name.parse() {
            return Ok(Some(id));
        }
        let found = if self.is_group {
            known(Group::from_name(&self.name)).map(|group| group.map(|group| group.gid.as_raw()))
        } else {
            known(User::from_name(&self.name)).map(|user| user.map(|user| user.uid.as_raw()))
        };
        found.map_err(|errno| format!("[access]: cannot look up {}: {errno}", self.name))
    }
}

/// The system's answer about a name. It knows none in an image without `/etc/group`, and getgrnam(3) calls that an error.
fn known<T>(found: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match found {
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        found => found,
    }
}

/// The group whose members may use the socket without `[access]`, if it exists.
pub(crate) const GROUP: &str = "weir";

/// `[access]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Access {
    read: Vec<Subject>,
    own: Option<Vec<Subject>>,
    operate: Vec<Subject>,
    admin: Vec<Subject>,
}

/// The rights by user and group number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rights {
    users: BTreeMap<u32, Right>,
    groups: BTreeMap<u32, Right>,
    /// The number of the group `weir`, if it exists.
    group: Option<u32>,
}

impl Access {
    /// Resolves the names.
    ///
    /// # Errors
    /// The system does not know a name.
    pub(crate) fn rights(&self) -> Result<Rights, String> {
        let usual = Subject { is_group: true, name: GROUP.to_owned() };
        let group = usual.id()?;
        let mut rights = Rights { group, ..Rights::default() };
        if self.own.is_none() {
            rights.groups.extend(group.map(|id| (id, Right::Own)));
        }
        let own = self.own.as_deref().unwrap_or_default();
        let lists = [
            (Right::Read, &*self.read),
            (Right::Own, own),
            (Right::Operate, &*self.operate),
            (Right::Admin, &*self.admin),
        ];
        for (right, subjects) in lists {
            for subject in subjects {
                let kind = if subject.is_group { "group" } else { "user" };
                let id = subject.id()?.ok_or_else(|| {
                    format!("[access] {}: there is no {kind} {} on this system", right.key(), subject.name)
                })?;
                let map = if subject.is_group { &mut rights.groups } else { &mut rights.users };
                let known = map.entry(id).or_insert(right);
                *known = right.max(*known);
            }
        }
        Ok(rights)
    }
}

impl Rights {
    /// The highest right of a user in these groups.
    pub(crate) fn of(&self, uid: u32, groups: &[u32]) -> Option<Right> {
        let by_group = groups.iter().filter_map(|group| self.groups.get(group));
        by_group.chain(self.users.get(&uid)).copied().max()
    }

    /// Whether a user outside the group `weir` has a right. The socket's mode then admits all users.
    pub(crate) fn is_for_others(&self) -> bool {
        !self.users.is_empty() || self.groups.keys().any(|group| Some(*group) != self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> Access {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn an_image_without_a_file_of_groups_knows_no_group() {
        assert_eq!(known::<u32>(Err(Errno::ENOENT)), Ok(None));
        assert_eq!(known::<u32>(Err(Errno::EMFILE)), Err(Errno::EMFILE));
        assert_eq!(known(Ok(Some(7))), Ok(Some(7)));
    }

    #[test]
    fn each_right_includes_those_before_it_and_the_greatest_counts() {
        let rights =
            access("read = [\"1000\", \"@7\"]\nown = [\"1001\"]\noperate = [\"@8\"]\nadmin = [\"1002\"]")
                .rights();
        let rights = rights.unwrap();
        assert!(rights.is_for_others());
        for (uid, groups, right) in [
            (1000, &[][..], Some(Right::Read)),
            (1000, &[7, 8], Some(Right::Operate)),
            (1001, &[9], Some(Right::Own)),
            (1002, &[8], Some(Right::Admin)),
            (1003, &[9], None),
            (1003, &[7], Some(Right::Read)),
        ] {
            assert_eq!(rights.of(uid, groups), right, "{uid} {groups:?}");
        }
        assert!(Right::Read < Right::Own && Right::Own < Right::Operate && Right::Operate < Right::Admin);
    }

    #[test]
    fn names_that_are_unknown_are_refused() {
        let refused = |text| access(text).rights().unwrap_err();
        assert_eq!(
            refused("operate = [\"no-such-user\"]"),
            "[access] operate: there is no user no-such-user on this system"
        );
        assert!(refused("read = [\"@no-such-group\"]").contains("no group no-such-group"));
        assert!(toml::from_str::<Access>("read = [\"a b\"]").is_err());
        assert!(toml::from_str::<Access>("reed = []").is_err());
        // Every system knows root's name.
        assert_eq!(access("admin = [\"root\"]").rights().unwrap().of(0, &[]), Some(Right::Admin));
    }

    #[test]
    fn without_a_section_the_group_weir_reads_and_makes_agreements() {
        let rights = Access::default().rights().unwrap();
        assert!(!rights.is_for_others());
        if let Some(group) = rights.group {
            assert_eq!(rights.of(1000, &[group]), Some(Right::Own));
        }
        let none = access("own = []").rights().unwrap();
        assert_eq!((none.of(1000, &[none.group.unwrap_or(1)]), none.is_for_others()), (None, false));
    }
}
