//! Packets through the scheduler, in virtual time: users below one link, half of them 0.5 Mbit/s
//! with a ceiling of 1, half 2 with 12, all with packets of 64 bytes waiting; each packet that leaves
//! comes back. `all` users have packets, or only two of three, so that these borrow.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

#[path = "../tests/users/mod.rs"]
mod users;

use users::Users;

const BATCH: u64 = 10_000;

fn through(c: &mut Criterion) {
    let mut group = c.benchmark_group("htb");
    group.throughput(Throughput::Elements(BATCH));
    for count in [800, 1_600, 65_536] {
        for (name, active) in [("all", count), ("two of three", count * 2 / 3)] {
            let mut users = Users::new(count, active, 64);
            users.run(u64::from(count) * 100);
            group.bench_function(BenchmarkId::new(name, count), |b| b.iter(|| users.run(BATCH)));
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = through
}
criterion_main!(benches);
