use std::collections::BTreeSet;

use weir_testkit::FakeDocker;

use super::*;

fn layers(layers: &[(&str, u64)]) -> Vec<(String, u64)> {
    layers.iter().map(|(diff, bytes)| (format!("sha256:{diff}"), *bytes)).collect()
}

async fn connect(docker: &FakeDocker) -> Images {
    let options = Options { time_limit: Duration::from_secs(5), ..Options::at(docker.socket()) };
    Images::connect(&options).await.unwrap()
}

/// Two images over one base, and one of which a container was made.
fn docker() -> FakeDocker {
    let docker = FakeDocker::start();
    let mut store = docker.store();
    store.pull("sha256:a", "app:1", &layers(&[("base", 1000), ("empty", 0), ("a", 10)]));
    store.pull("sha256:b", "ghcr.io/acme/b:1", &layers(&[("base", 1000), ("empty", 0), ("b", 20)]));
    store.pull("sha256:c", "busy:1", &layers(&[("other", 300)]));
    store.create("web", "sha256:c");
    drop(store);
    docker
}

fn image(look: &Look, id: &str) -> Image {
    look.images.iter().find(|image| image.id == id).unwrap().clone()
}

#[tokio::test]
async fn look_tells_layers_that_images_share_and_containers() {
    let docker = docker();
    let mut images = connect(&docker).await;
    let look = images.look().await.unwrap();
    let (a, b) = (image(&look, "sha256:a"), image(&look, "sha256:b"));
    assert_eq!((a.names.clone(), a.bytes), (vec!["app:1".to_owned()], 1010));
    assert_eq!(a.layers[..2], b.layers[..2]);
    assert_eq!(a.layers.iter().map(|layer| layer.1).collect::<Vec<_>>(), [1000, 0, 10]);
    assert_ne!(a.layers[2].0, b.layers[2].0);
    let web = Container { id: "web".to_owned(), name: "web".to_owned(), image: "sha256:c".to_owned() };
    assert_eq!(look.containers, [web]);
    assert!(look.is_exact);
    assert_eq!(images.measure().await.unwrap(), 1330);
    let before = docker.store().asked.len();
    assert_eq!(images.look().await.unwrap(), look);
    assert_eq!(docker.store().asked.len() - before, 2, "an image never changes");
}

#[tokio::test]
async fn image_without_a_telling_history_is_not_exact_and_has_its_size() {
    let docker = docker();
    docker.store().faults.insert("/history", (200, "not a history"));
    let mut images = connect(&docker).await;
    let why = images.look().await.unwrap_err();
    assert!(matches!(why, Unavailable::Garbled { .. }), "{why}");
    docker.store().faults.clear();
    assert!(images.look().await.unwrap().is_exact);
    docker.store().pull("sha256:d", "d:1", &layers(&[("base", 1000), ("x", 60), ("y", 17)]));
    docker.store().images.get_mut("sha256:d").unwrap().has_no_history = true;
    let look = images.look().await.unwrap();
    assert!(!look.is_exact);
    let (a, d) = (image(&look, "sha256:a"), image(&look, "sha256:d"));
    assert_eq!(d.layers[0], a.layers[0], "its base is another image's too");
    assert_eq!(d.layers.iter().map(|layer| layer.1).collect::<Vec<_>>(), [1000, 0, 0, 77]);
}

#[tokio::test]
async fn image_of_a_container_is_refused_and_loses_nothing() {
    let docker = docker();
    let mut images = connect(&docker).await;
    let look = images.look().await.unwrap();
    let refused = images.remove(&image(&look, "sha256:c")).await.unwrap();
    assert!(
        matches!(&refused, Removal::Refused(why) if why.contains("being used by a container")),
        "{refused:?}"
    );
    assert_eq!(images.remove(&image(&look, "sha256:a")).await, Ok(Removal::Removed));
    assert_eq!(images.remove(&image(&look, "sha256:a")).await, Ok(Removal::Gone));
    assert_eq!(docker.store().removed, ["sha256:a"]);
}

#[tokio::test]
async fn container_made_before_a_removal_keeps_its_image_and_its_names() {
    for names in [&["app:2"][..], &["app:2", "app:latest"], &["app:2", "app:latest", "ghcr.io/acme/copy:2"]] {
        for at in 0..names.len() {
            let docker = docker();
            for name in names {
                docker.store().pull("sha256:d", name, &layers(&[("d", 5)]));
            }
            let mut images = connect(&docker).await;
            let d = image(&images.look().await.unwrap(), "sha256:d");
            let before = docker.store().images["sha256:d"].names.clone();
            let mut changes = 0;
            docker.store().before_change = Some(Box::new(move |store, _| {
                if changes == at {
                    store.create("late", "sha256:d");
                }
                changes += 1;
            }));
            let refused = images.remove(&d).await.unwrap();
            assert!(matches!(refused, Removal::Refused(_)), "{names:?} {at}: {refused:?}");
            assert_eq!(docker.store().images["sha256:d"].names, before, "{names:?} {at}");
        }
    }
}

#[tokio::test]
async fn image_with_many_names_is_removed_with_all_of_them() {
    let docker = docker();
    for name in ["d:1", "d:2", "ghcr.io/acme/d:1"] {
        docker.store().pull("sha256:d", name, &layers(&[("d", 5)]));
    }
    docker.store().images.get_mut("sha256:d").unwrap().digests.insert("elsewhere@sha256:d".to_owned());
    let mut images = connect(&docker).await;
    let look = images.look().await.unwrap();
    assert_eq!(images.remove(&image(&look, "sha256:d")).await, Ok(Removal::Removed));
    assert_eq!(docker.store().removed, ["sha256:d"]);
}

#[tokio::test]
async fn name_that_moved_on_to_another_image_stays_there() {
    let docker = docker();
    for name in ["d:1", "d:latest"] {
        docker.store().pull("sha256:d", name, &layers(&[("d", 5)]));
    }
    let mut images = connect(&docker).await;
    let d = image(&images.look().await.unwrap(), "sha256:d");
    docker.store().pull("sha256:e", "d:latest", &layers(&[("e", 6)]));
    assert_eq!(images.remove(&d).await, Ok(Removal::Removed));
    assert_eq!(docker.store().images["sha256:e"].names, BTreeSet::from(["d:latest".to_owned()]));
    assert_eq!(docker.store().removed, ["sha256:d"]);
}

#[tokio::test]
async fn changes_tell_which_image_a_container_was_made_of() {
    let docker = docker();
    let images = connect(&docker).await;
    let mut changes = images.changes(0).await.unwrap();
    docker.store().create("short", "sha256:a");
    docker.store().destroy("short");
    docker.store().pull("sha256:a", "app:1", &layers(&[("base", 1000), ("a", 10)]));
    let created = Change::Created { container: "short".to_owned(), image: "app:1".to_owned() };
    for change in [created, Change::Other, Change::Pulled { image: "app:1".to_owned() }] {
        assert_eq!(changes.next().await.unwrap(), change);
    }
}
