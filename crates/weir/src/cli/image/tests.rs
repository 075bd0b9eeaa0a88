//! The socket that the verbs ask, and the unit of the cache.

#[test]
fn socket_of_the_unit_is_asked_if_it_is_there_and_no_other_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (unit, usual) = (dir.path().join("weir.sock"), std::path::Path::new(weir_api::DEFAULT_SOCKET));
    assert_eq!(super::socket_to_ask(usual, &unit), usual);
    std::fs::write(&unit, "").unwrap();
    assert_eq!(super::socket_to_ask(usual, &unit), unit);
    let named = std::path::Path::new("/run/other.sock");
    assert_eq!(super::socket_to_ask(named, &unit), named);
}

/// The unit runs parsers on the answers of possibly hostile registries.
#[test]
fn unit_of_the_cache_is_exposed_by_two_points_at_most() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/weir-images.service");
    let asked =
        std::process::Command::new("systemd-analyze").args(["security", "--offline=yes", unit]).output();
    let Ok(told) = asked else {
        println!("SKIPPED: there is no systemd-analyze");
        return;
    };
    let text = String::from_utf8(told.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("Overall exposure level"));
    let exposure = line.and_then(|line| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<f64>().ok());
    assert!(
        exposure.is_some_and(|exposure| exposure <= 2.0),
        "{line:?} {}",
        String::from_utf8_lossy(&told.stderr)
    );
}
