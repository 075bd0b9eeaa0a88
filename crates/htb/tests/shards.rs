//! A link over several trees: users get what one tree gives them, in virtual time.

use std::time::Duration;

use weir_htb::{ClassId, ClassSpec, Departure, Htb, Limits, Packet, Params, Shard, shards};
use weir_units::{BitRate, Bytes, Instant};

const USERS: u32 = 80;
const LINK: ClassId = ClassId(USERS);
const LEN: u32 = 200;
const LIMITS: Limits = Limits { classes: USERS + 1, packets: 2_000, depth: 2 };

/// The paper's: half of the users have 0.5 to 1 Mbit/s, half 2 to 12.
fn classes() -> (ClassSpec, Vec<ClassSpec>) {
    let link = BitRate::mbit(100);
    let user = |user| {
        let (rate, ceil) = if user % 2 == 0 { (500, 1_000) } else { (2_000, 12_000) };
        let params = Params::new(BitRate::kbit(rate)).ceil(BitRate::kbit(ceil)).quantum(1_514);
        ClassSpec { id: ClassId(user), parent: Some(LINK), params }
    };
    let params = Params::new(link).burst(Bytes(20_000)).cburst(Bytes(20_000));
    (ClassSpec { id: LINK, parent: None, params }, (0..USERS).map(user).collect())
}

/// Something that packets go through.
trait Link {
    fn fill(&mut self, user: u32, packets: u32);
    fn send(&mut self, now: Instant, sent: &mut [u64]);
}

fn fill(htb: &mut impl FnMut(Packet) -> bool, packets: u32) {
    (0..packets).all(|handle| htb(Packet { handle, len: LEN }));
}

fn count(left: &[Departure], sent: &mut [u64]) {
    left.iter().for_each(|departure| sent[departure.leaf.0 as usize] += u64::from(departure.packet.len));
}

impl Link for Htb {
    fn fill(&mut self, user: u32, packets: u32) {
        fill(&mut |packet| self.enqueue(ClassId(user), packet).is_ok(), packets);
    }

    fn send(&mut self, now: Instant, sent: &mut [u64]) {
        let mut left = [Departure::default(); 16];
        while let n @ 1.. = self.dequeue_batch(now, &mut left) {
            count(&left[..n], sent);
        }
    }
}

impl Link for Vec<Shard> {
    fn fill(&mut self, user: u32, packets: u32) {
        let shard = self.iter_mut().find(|shard| shard.has(ClassId(user))).unwrap();
        fill(&mut |packet| shard.enqueue(ClassId(user), packet).is_ok(), packets);
    }

    fn send(&mut self, now: Instant, sent: &mut [u64]) {
        let mut left = [Departure::default(); 16];
        for shard in self {
            while let n @ 1.. = shard.dequeue_batch(now, &mut left) {
                count(&left[..n], sent);
            }
        }
    }
}

/// Mbit/s of each user in each phase of 1 s, of which the first 0.2 are left out. In each phase other
/// users always have packets.
fn rates(link: &mut dyn Link, phases: &[&dyn Fn(u32) -> bool]) -> Vec<Vec<f64>> {
    const STEP: u64 = 200;
    let mut now_us = 0;
    let phase = |active: &&dyn Fn(u32) -> bool| {
        let mut sent = vec![0; USERS as usize];
        let end = now_us + 1_000_000;
        while now_us < end {
            for user in (0..USERS).filter(|user| active(*user)) {
                link.fill(user, 12);
            }
            if now_us == end - 800_000 {
                sent.fill(0);
            }
            now_us += STEP;
            link.send(Instant(Duration::from_micros(now_us)), &mut sent);
        }
        sent.iter().map(|bytes| *bytes as f64 * 8.0 / 0.8e6).collect()
    };
    phases.iter().map(phase).collect()
}

#[test]
fn users_of_shards_have_the_rates_of_one_tree_within_a_hundredth() {
    let (root, users) = classes();
    let all = |_| true;
    let two_of_three = |user| user < USERS * 2 / 3;
    let eight = |user| user % 10 == 1;
    let special = |user| user % 2 == 1;
    let phases: [&dyn Fn(u32) -> bool; 5] = [&all, &two_of_three, &eight, &special, &all];
    let specs = [&[root], &users[..]].concat();
    let limits = |user: &ClassSpec| ClassSpec { params: user.params.limit(12), ..*user };
    let specs = specs.iter().map(limits).collect::<Vec<_>>();
    let (mut one, _) = Htb::build(LIMITS, Instant::default(), &specs).unwrap();
    let want = rates(&mut one, &phases);
    for count in [2, 4] {
        let mut several = shards(LIMITS, Instant::default(), specs[0], &specs[1..], count).unwrap();
        let got = rates(&mut several, &phases);
        for (phase, (got, want)) in got.iter().zip(&want).enumerate() {
            let totals = (got.iter().sum::<f64>(), want.iter().sum::<f64>());
            assert!(totals.0 < 100.1 && totals.0 > totals.1 * 0.995, "{count}, phase {phase}: {totals:?}");
            for (user, (got, want)) in got.iter().zip(want).enumerate() {
                // Beside the hundredth a turn of 1,514 bytes more or less.
                assert!(
                    (got - want).abs() <= 0.01 * want + 0.0152,
                    "{count}, phase {phase}, user {user}: {got} {want}"
                );
            }
        }
        let parts = several.iter().map(|shard| shard.part().0).sum::<u64>();
        assert!(parts <= BitRate::mbit(100).0 && parts > BitRate::mbit(99).0, "{parts}");
    }
}

#[test]
fn every_class_is_in_one_shard_and_they_are_assured_of_as_much() {
    let (root, mut users) = classes();
    users.reverse();
    let several = shards(LIMITS, Instant::default(), root, &users, 4).unwrap();
    for user in 0..USERS {
        assert_eq!(several.iter().filter(|shard| shard.has(ClassId(user))).count(), 1);
    }
    for shard in &several {
        let mine = users.iter().filter(|user| shard.has(user.id));
        assert_eq!(mine.map(|user| user.params.rate.0).sum::<u64>(), BitRate::mbit(25).0);
        assert!(shard.has(LINK));
    }
    // One class more makes no cycle and no stranger acceptable.
    users.push(ClassSpec { id: ClassId(1), ..users[0] });
    assert!(shards(LIMITS, Instant::default(), root, &users, 4).is_err());
}
