//! Instructions a packet takes, through the scheduler and back: the same on every machine and under
//! any load, unlike time. `cargo test --release -p weir-htb --test instructions`

mod users;

use std::process::Command;

use users::Users;

/// Users, how many of them have packets, and instructions a packet may take.
///
/// 64 bytes; 206 and 754 when written, with rustc 1.95 for x86-64. The second is dear as users who
/// send one packet whenever they may change their mode with each.
const WORKLOADS: [(u32, u32, u64); 3] = [(800, 800, 230), (1_600, 1_600, 230), (800, 533, 830)];
const PACKETS: u64 = 20_000;
const ASKED: &str = "WEIR_HTB_WORKLOAD";

#[inline(never)]
fn counted_by_callgrind(users: &mut Users) -> u64 {
    users.run(PACKETS)
}

#[test]
#[ignore = "is the program that the other test runs below callgrind"]
fn workload() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let (count, active, _) = WORKLOADS[asked.parse::<usize>().unwrap()];
    let mut users = Users::new(count, active, 64);
    users.run(u64::from(count) * 50);
    assert!(counted_by_callgrind(&mut users) >= PACKETS);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "instructions are counted of what is optimised: add --release")]
fn a_packet_takes_no_more_instructions_than_it_did() {
    for (i, (count, active, most)) in WORKLOADS.into_iter().enumerate() {
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
        println!("{active} of {count} users: {each} instructions a packet, at most {most}");
        // Fewer than a queue alone takes means that nothing was counted.
        assert!((50..=most).contains(&each), "{active} of {count} users: {each} instructions a packet");
    }
}
