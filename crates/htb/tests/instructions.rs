//! Instructions a packet takes, through the scheduler and back: the same on every machine and under
//! any load, unlike time. `cargo test --release -p weir-htb --test instructions`

mod users;

use std::process::Command;

use users::Users;

/// Users, how many of them have packets, whether these always wait (or arrive as fast as the link lets
/// them go, so that most leaves have one or none), and instructions a packet may take: a tenth more than
/// were counted with rustc 1.95 for x86-64, packets of 64 bytes.
///
/// A leaf that always has packets sends a turn of them, one that has a packet now and then begins and
/// ends with each; and two of three users spend more than they are assured of, so that each packet is one
/// or two changes of mode.
const WORKLOADS: [(u32, u32, bool, u64); 5] = [
    (800, 800, true, 184),
    (1_600, 1_600, true, 188),
    (800, 533, true, 664),
    (800, 800, false, 536),
    (800, 533, false, 657),
];
const PACKETS: u64 = 20_000;
const ASKED: &str = "WEIR_HTB_WORKLOAD";

#[inline(always)]
fn through(users: &mut Users, backlogged: bool, packets: u64) -> u64 {
    if backlogged { users.run(packets) } else { users.pass(packets) }
}

#[inline(never)]
fn counted_by_callgrind(users: &mut Users, backlogged: bool) -> u64 {
    through(users, backlogged, PACKETS)
}

#[test]
#[ignore = "is the program that the other test runs below callgrind"]
fn workload() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let (count, active, backlogged, _) = WORKLOADS[asked.parse::<usize>().unwrap()];
    let mut users = if backlogged { Users::new(count, active, 64) } else { Users::idle(count, active, 64) };
    through(&mut users, backlogged, u64::from(count) * 50);
    assert!(counted_by_callgrind(&mut users, backlogged) >= PACKETS);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "instructions are counted of what is optimised: add --release")]
fn a_packet_takes_no_more_instructions_than_it_did() {
    for (i, (count, active, backlogged, most)) in WORKLOADS.into_iter().enumerate() {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg("--toggle-collect=*counted_by_callgrind*")
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "workload"])
            .env(ASKED, i.to_string())
            .output()
            .expect("valgrind runs (apt install valgrind)");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{told}");
        let collected = told.lines().find_map(|line| line.split_once("Collected :"));
        let collected = collected.expect("callgrind tells what it collected").1.trim();
        let each = collected.parse::<u64>().unwrap() / PACKETS;
        let how = if backlogged { "backlogged" } else { "offered" };
        let what = format!("{active} of {count} users, {how}: {each} instructions a packet, at most {most}");
        println!("{what}");
        // Fewer than a queue alone takes means that nothing was counted.
        assert!((50..=most).contains(&each), "{what}");
    }
}
