use std::{
    mem::{MaybeUninit, offset_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, OpenMapMut, OpenObject, ProgramInput,
    skel::{OpenSkel, SkelBuilder},
};

use self::skeleton::{EdtSkel, EdtSkelBuilder, OpenEdtSkel, types::bss};
use crate::{
    Error,
    common::{
        attach,
        entries::{u32_at, u64_at},
        framing::FramingWord,
        mapped::Mapped,
    },
};

#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/edt.skel.rs"));
}

/// Of the maps' layout: `WEIR_EDT_LAYOUT` of edt.h.
const LAYOUT: u32 = 5;

/// `struct weir_edt_link` of edt.h, without the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdtLink {
    /// Bytes per second.
    pub capacity: u64,
    /// The highest minor that is a class.
    pub last_minor: u32,
    /// The highest number of a group.
    pub groups: u32,
    /// A full packet on the wire.
    pub packet_bytes: u32,
    /// A packet that would wait longer is dropped, unless fewer than [`EdtRule::queue_bytes`]
    /// wait; ns.
    pub horizon_ns: u64,
    /// Transmit queues of the device, over which flows are spread.
    pub queues: u32,
    /// The framing of the line. Bytes and rates are the line's with it.
    pub framing: FramingWord,
}

/// `struct weir_edt_rule` of edt.h: the policy of a class or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdtRule {
    /// Floor, bytes per second.
    pub min: u64,
    /// Ceiling, bytes per second.
    pub max: u64,
    /// The bytes of a class that may wait, for any time.
    pub queue_bytes: u64,
    /// At least 1; 0 if there is no such class.
    pub weight: u32,
    /// Of a class: number of its group, or 0. Of a group: its minor.
    pub group: u32,
}

/// `struct weir_edt_class` of edt.h: what the kernel knows of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdtClass {
    /// When its next packet may leave, `CLOCK_MONOTONIC`, ns.
    pub clock: u64,
    /// Let through: on the wire, sooner or later.
    pub bytes: u64,
    /// Let through; a super-packet counts its segments.
    pub packets: u64,
    /// Dropped, packets.
    pub drops: u64,
    /// Told of congestion instead (ECN), packets.
    pub marks: u64,
    /// The rate that it may send, bytes per second.
    pub rate: u64,
    /// It waits, or uses all it may have.
    pub backlogged: bool,
}

const LINK: usize = 40;
const RULE: usize = 32;
const CLASS: usize = 136;

/// The words of a struct, one after the other.
struct Words(Vec<u8>);

impl Words {
    fn u64(mut self, word: u64) -> Words {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    fn u32(mut self, word: u32) -> Words {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }
}

impl EdtLink {
    fn bytes(&self) -> Vec<u8> {
        let EdtLink { capacity, last_minor, groups, packet_bytes, horizon_ns, queues, framing } = *self;
        let words = Words(Vec::with_capacity(LINK)).u64(capacity).u32(LAYOUT).u32(last_minor);
        words.u32(groups).u32(packet_bytes).u64(horizon_ns).u32(queues).u32(framing.0).0
    }

    fn read(b: &[u8]) -> EdtLink {
        EdtLink {
            capacity: u64_at(b, 0),
            last_minor: u32_at(b, 12),
            groups: u32_at(b, 16),
            packet_bytes: u32_at(b, 20),
            horizon_ns: u64_at(b, 24),
            queues: u32_at(b, 32),
            framing: FramingWord(u32_at(b, 36)),
        }
    }
}

impl EdtRule {
    fn bytes(&self) -> Vec<u8> {
        let words = Words(Vec::with_capacity(RULE)).u64(self.min).u64(self.max).u64(self.queue_bytes);
        words.u32(self.weight).u32(self.group).0
    }

    fn read(b: &[u8]) -> EdtRule {
        EdtRule {
            min: u64_at(b, 0),
            max: u64_at(b, 8),
            queue_bytes: u64_at(b, 16),
            weight: u32_at(b, 24),
            group: u32_at(b, 28),
        }
    }
}

impl EdtClass {
    fn read(b: &[u8]) -> EdtClass {
        EdtClass {
            clock: u64_at(b, 0),
            bytes: u64_at(b, 8),
            packets: u64_at(b, 16),
            drops: u64_at(b, 40),
            marks: u64_at(b, 48),
            rate: u64_at(b, 56),
            backlogged: u32_at(b, 96) != 0,
        }
    }
}

/// The program that stamps departure times (`edt.bpf.c`), and its maps.
///
/// Dropping it leaves the attached program, and the maps it uses, in the kernel.
pub struct Edt {
    skeleton: EdtSkel<'static>,
    /// The program's variables. The skeleton's own view of them is not the kernel's if they are inherited.
    variables: Mapped,
}

impl Edt {
    /// The name under which the kernel knows the program.
    pub const PROGRAM: &'static str = "weir_edt";
    /// Minors are below this.
    pub const CLASSES: u32 = 4096;
    /// Numbers of groups are below this, and not zero.
    pub const GROUPS: u32 = 1024;
    /// Minor of the class of packets without another.
    pub const DEFAULT: u32 = 2;
    /// Minor of the class that never waits.
    pub const CONTROL: u32 = 3;

    /// Loads the program; nothing is attached yet. Given the id of one that an earlier agent
    /// left, the new one goes on with its maps and variables, if their layout is this version's.
    /// They hold clocks, counters, the time of the last division, the link's account and the
    /// flows that wait.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason: kernels before 5.18 lack `bpf_skb_set_tstamp`.
    pub fn load(successor_of: Option<u32>) -> Result<Edt, Error> {
        let error =
            |source| Error { what: "load the program of departure times (needs kernel 5.18)", source };
        // libbpf's own lines would go to stderr in its format; the error carries the reason.
        libbpf_rs::set_print(None);
        let inherit = |id: u32| {
            let mut open = open().ok()?;
            Inherited::from(id, open.maps.bss.value_size())?.give(&mut open).ok()?;
            Edt::of(open).ok()
        };
        match successor_of.and_then(inherit) {
            Some(edt) => Ok(edt),
            None => open().and_then(Edt::of).map_err(error),
        }
    }

    fn of(open: OpenEdtSkel<'static>) -> Result<Edt, libbpf_rs::Error> {
        let skeleton = open.load()?;
        let bytes = skeleton.maps.bss.value_size() as usize;
        let variables = Mapped::of(&skeleton.maps.bss, bytes)
            .map_err(|errno| libbpf_rs::Error::from_raw_os_error(errno as i32))?;
        Ok(Edt { skeleton, variables })
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.weir_edt.as_fd()
    }

    /// The program, as a number for netlink.
    #[must_use]
    pub fn program_number(&self) -> RawFd {
        self.program().as_raw_fd()
    }

    /// Lets the program decide about a packet, as the kernel would at the device; `packet` is
    /// an Ethernet frame, `context` a `struct __sk_buff` that the program's changes go to.
    /// For tests.
    ///
    /// # Errors
    /// [`Error`].
    pub fn try_on(&self, packet: &[u8], context: &mut [u8], repeat: u32) -> Result<Tried, Error> {
        let mut after = context.to_vec();
        let input = ProgramInput {
            context_in: Some(context),
            context_out: Some(&mut after),
            data_in: Some(packet),
            repeat,
            ..Default::default()
        };
        let output = self
            .skeleton
            .progs
            .weir_edt
            .test_run(input)
            .map_err(|source| Error { what: "try the program of departure times", source })?;
        let (verdict, duration) = (output.return_value.cast_signed(), output.duration);
        context.copy_from_slice(&after);
        Ok(Tried { verdict, duration })
    }

    /// Tells the program of the link.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_link(&self, link: &EdtLink) -> Result<(), Error> {
        self.skeleton
            .maps
            .weir_edt_link
            .update(&0u32.to_ne_bytes(), &link.bytes(), MapFlags::ANY)
            .map_err(|source| Error { what: "tell the program of the link", source })
    }

    /// Sets a class's policy.
    ///
    /// # Errors
    /// [`Error`]: minors from [`Edt::CLASSES`] on have no place.
    pub fn set_class(&self, minor: u16, rule: &EdtRule) -> Result<(), Error> {
        set(&self.skeleton.maps.weir_edt_rules, minor.into(), &rule.bytes(), "set a class's rate")
    }

    /// Sets the policy of the group of this number.
    ///
    /// # Errors
    /// [`Error`]: numbers from [`Edt::GROUPS`] on have no place.
    pub fn set_group(&self, number: u32, rule: &EdtRule) -> Result<(), Error> {
        set(&self.skeleton.maps.weir_edt_groups, number, &rule.bytes(), "set a group's rate")
    }

    /// Lets the next packet divide the link, by the last written policies. Until then packets, of
    /// which a sender may have a window's, are stamped at the earlier rates.
    pub fn divide_anew(&self) {
        self.divide_at(0);
    }

    /// Lets no packet divide the link before this time, `CLOCK_MONOTONIC`, ns, as the program
    /// itself does. A time that is more than a second ahead counts for nothing. For tests.
    pub fn divide_at(&self, time: u64) {
        self.variables.write(offset_of!(bss, weir_edt_next) / size_of::<u64>(), time);
    }

    /// Sets a class's clock and counters back, for a new class of this minor.
    ///
    /// # Errors
    /// [`Error`].
    pub fn forget(&self, minor: u16) -> Result<(), Error> {
        set(&self.skeleton.maps.weir_edt_clocks, minor.into(), &[0; CLASS], "set a class's clock back")
    }

    /// The program's parameters of the link; none if this layout was never written.
    ///
    /// # Errors
    /// [`Error`].
    pub fn link(&self) -> Result<Option<EdtLink>, Error> {
        let read = self.skeleton.maps.weir_edt_link.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let read =
            read.map_err(|source| Error { what: "read what the program knows of the link", source })?;
        Ok(read.filter(|b| u32_at(b, 8) == LAYOUT).map(|b| EdtLink::read(&b)))
    }

    /// Policies of the classes with minors up to `last`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn rules(&self, last: u32, out: &mut Vec<EdtRule>) -> Result<(), Error> {
        rows(&self.skeleton.maps.weir_edt_rules, last, EdtRule::read, out, "read the classes' rates")
    }

    /// Policies of the groups with numbers up to `last`; number 0 stands for no group.
    ///
    /// # Errors
    /// [`Error`].
    pub fn groups(&self, last: u32, out: &mut Vec<EdtRule>) -> Result<(), Error> {
        rows(&self.skeleton.maps.weir_edt_groups, last, EdtRule::read, out, "read the groups' rates")
    }

    /// Clocks and counters of the classes with minors up to `last`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn classes(&self, last: u32, out: &mut Vec<EdtClass>) -> Result<(), Error> {
        rows(&self.skeleton.maps.weir_edt_clocks, last, EdtClass::read, out, "read the classes' clocks")
    }
}

/// The program's verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// `TC_ACT_*`.
    pub verdict: i32,
    /// Mean over all repetitions.
    pub duration: std::time::Duration,
}

fn open() -> Result<OpenEdtSkel<'static>, libbpf_rs::Error> {
    // One object a process lifetime: leaked, so that the skeleton needs no self-reference.
    let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    EdtSkelBuilder::default().open(storage)
}

/// The maps of a program that an earlier agent left.
struct Inherited {
    link: MapHandle,
    rules: MapHandle,
    groups: MapHandle,
    clocks: MapHandle,
    variables: MapHandle,
}

impl Inherited {
    /// `variables` is the size of this version's. `None` means that the maps are of another one.
    fn from(program: u32, variables: u32) -> Option<Inherited> {
        let maps: Vec<MapHandle> = attach::program_maps(program)
            .ok()?
            .into_iter()
            .filter_map(|id| MapHandle::from_map_id(id).ok())
            .collect();
        let find = |name: &str, size: usize, entries: u32| {
            let is = |m: &&MapHandle| {
                m.name().to_str() == Some(name)
                    && m.value_size() as usize == size
                    && m.max_entries() == entries
            };
            maps.iter().find(is).and_then(|m| MapHandle::try_from(m).ok())
        };
        let found = Inherited {
            link: find("weir_edt_link", LINK, 1)?,
            rules: find("weir_edt_rules", RULE, Edt::CLASSES)?,
            groups: find("weir_edt_groups", RULE, Edt::GROUPS)?,
            clocks: find("weir_edt_clocks", CLASS, Edt::CLASSES)?,
            variables: find("edt_bpf.bss", variables as usize, 1)?,
        };
        let link = found.link.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        (u32_at(&link, 8) == LAYOUT).then_some(found)
    }

    fn give(&self, open: &mut OpenEdtSkel<'_>) -> Result<(), libbpf_rs::Error> {
        let reuse = |map: &mut OpenMapMut<'_>, handle: &MapHandle| map.reuse_fd(handle.as_fd());
        reuse(&mut open.maps.weir_edt_link, &self.link)?;
        reuse(&mut open.maps.weir_edt_rules, &self.rules)?;
        reuse(&mut open.maps.weir_edt_groups, &self.groups)?;
        reuse(&mut open.maps.weir_edt_clocks, &self.clocks)?;
        reuse(&mut open.maps.bss, &self.variables)
    }
}

fn set(map: &impl MapCore, key: u32, value: &[u8], what: &'static str) -> Result<(), Error> {
    map.update(&key.to_ne_bytes(), value, MapFlags::ANY).map_err(|source| Error { what, source })
}

/// The first rows of an array, in one system call.
fn rows<T>(
    map: &impl MapCore,
    last: u32,
    read: fn(&[u8]) -> T,
    out: &mut Vec<T>,
    what: &'static str,
) -> Result<(), Error> {
    out.clear();
    let count = (last + 1).min(map.max_entries());
    let rows =
        map.lookup_batch(count, MapFlags::ANY, MapFlags::ANY).map_err(|source| Error { what, source })?;
    out.extend(rows.take(count as usize).map(|(_, row)| read(&row)));
    Ok(())
}

#[cfg(test)]
mod tests;
