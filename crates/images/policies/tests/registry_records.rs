//! Records as the IBM registry trace has them, made and published, replayed as `weir image simulate` does.

use std::{env, fs, path::Path};

use weir_cache::{
    PolicyKind,
    simulate::{Outcome, Setup, Sharing, TimeModel, simulate},
    trace::{RegistryReader, Skipped, Trace},
};
use weir_units::Bytes;

fn read(text: &str) -> (Trace, Skipped) {
    let mut reader = RegistryReader::default();
    reader.read(text.as_bytes()).unwrap();
    let skipped = reader.skipped();
    (reader.finish().unwrap(), skipped)
}

fn replay(trace: &Trace) -> Outcome {
    let (budget, policy) = (Bytes(1 << 30), PolicyKind::Auto);
    simulate(trace, Setup { nodes: 1, sharing: Sharing::Shared, budget, policy, time: TimeModel::PAPER }, 0)
}

#[test]
fn records_without_a_user_agent_and_out_of_order_are_deployments() {
    let record = |second: u32, client: &str, method: &str, uri: &str, written: u64| {
        format!(
            r#"{{"host":"0a1b2c3d","http.request.duration":0.25,"http.request.method":"{method}",
            "http.request.remoteaddr":"{client}","http.request.uri":"v2/11111111/22222222/{uri}",
            "http.response.status":200,"http.response.written":{written},"id":"00000000{second:02}",
            "timestamp":"2017-07-01T00:08:{second:02}.595Z"}}"#
        )
    };
    let text = [
        record(9, "aaaaaaaa", "GET", "blobs/44444444", 2193),
        record(4, "aaaaaaaa", "GET", "manifests/33333333", 917),
        record(5, "aaaaaaaa", "HEAD", "blobs/44444444", 599),
        record(31, "bbbbbbbb", "GET", "manifests/33333333", 917),
        record(32, "bbbbbbbb", "GET", "blobs/44444444", 2193),
    ];
    let (trace, skipped) = read(&format!("[{}]", text.join(",")));
    assert_eq!(skipped, Skipped { methods: 1, ..Skipped::default() });
    let outcome = replay(&trace);
    assert_eq!((outcome.deployments, outcome.image_hits), (2, 1));
    assert_eq!((outcome.bytes, outcome.byte_hits), (2 * 2193, 2193));
}

#[test]
fn records_of_the_published_trace_are_read_and_replayed() {
    let Some(directory) = env::var_os("WEIR_TRACES") else {
        println!("SKIPPED: WEIR_TRACES does not say where sample_stage-dal09.json is");
        return;
    };
    let text = fs::read_to_string(Path::new(&directory).join("sample_stage-dal09.json")).unwrap();
    let (trace, skipped) = read(&text);
    // Four GETs of manifests and one of a blob, from as many repositories; two HEADs. Manifests are no blobs.
    assert_eq!(skipped, Skipped { methods: 2, ..Skipped::default() });
    assert_eq!((trace.deployments.len(), trace.working_set()), (5, Bytes(2193)));
    assert_eq!(replay(&trace).deployments, 5);
}
