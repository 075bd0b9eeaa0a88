//! The images of a real Docker daemon: what they share, what a container keeps, and what a removal frees.

use std::time::Duration;

use weir_discovery::docker::{
    Options,
    images::{Change, Image, Images, Look, Removal},
};
use weir_testkit::{Dockerd, IMAGE, Netns};

/// The first image with this name.
fn named(look: &Look, name: &str) -> Image {
    let found = look.images.iter().find(|image| image.names.iter().any(|n| n == name));
    found.unwrap_or_else(|| panic!("{name} is not among {:?}", look.images)).clone()
}

/// An image of one more layer, made from a container; Docker calls it `name`.
fn commit(docker: &Dockerd, name: &str, kib: u32) {
    let line = format!("dd if=/dev/urandom of=/more bs=1024 count={kib}");
    docker.run("maker", &[], &["--network", "none"], &["sh", "-c", &line]).expect("runs");
    docker.docker(&["wait", "maker"]).expect("it ends");
    docker.docker(&["commit", "maker", name]).expect("makes an image");
    docker.rm("maker").expect("goes");
}

#[test]
fn real_docker_tells_shared_layers_and_refuses_an_image_in_use() {
    let node = match Netns::new("node") {
        Ok(node) => node,
        Err(why) => return println!("skipped: {why}"),
    };
    let docker = match Dockerd::start(node.name()) {
        Ok(docker) => docker,
        Err(why) => return println!("skipped: {why}"),
    };
    commit(&docker, "app:1", 300);
    docker.docker(&["tag", "app:1", "app:latest"]).expect("gets a name");
    docker.docker(&["tag", "app:1", "127.0.0.1:5050/acme/app:1"]).expect("gets a name");
    commit(&docker, "other:1", 200);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("can start");
    runtime.block_on(async {
        let mut images = Images::connect(&Options::at(docker.socket())).await.expect("answers");
        let mut changes = images.changes(0).await.expect("answers");
        docker.docker(&["create", "--name", "web", "--network", "none", "app:latest"]).expect("is made");
        let look = images.look().await.expect("answers");
        let (base, app, other) = (named(&look, IMAGE), named(&look, "app:1"), named(&look, "other:1"));
        println!("{} and {} bytes over {}", app.bytes, other.bytes, base.bytes);
        assert_eq!(app.names.len(), 3);
        assert_eq!((app.layers[0], app.layers[1].1), (base.layers[0], 300 << 10));
        assert_eq!((other.layers[0], other.layers[1].1), (base.layers[0], 200 << 10));
        assert!(look.is_exact && app.tagged.is_some());
        let all = base.bytes + (500 << 10);
        assert_eq!(images.measure().await.expect("answers"), all);
        assert_eq!(
            look.containers.iter().map(|c| (c.name.as_str(), &c.image)).collect::<Vec<_>>(),
            [("web", &app.id)]
        );
        let created = async {
            loop {
                match changes.next().await.expect("goes on") {
                    Change::Created { image, .. } if image == "app:latest" => return,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), created).await.expect("it is told");

        // A container that does not run keeps its image, with all names.
        let refused = images.remove(&app).await.expect("answers");
        println!("{refused:?}");
        assert!(matches!(refused, Removal::Refused(_)), "{refused:?}");
        let mut names = named(&images.look().await.expect("answers"), "app:1").names;
        names.sort();
        assert_eq!(names, ["127.0.0.1:5050/acme/app:1", "app:1", "app:latest"]);
        assert_eq!(images.remove(&other).await, Ok(Removal::Removed));
        assert_eq!(images.measure().await, Ok(all - (200 << 10)));
        docker.rm("web").expect("goes");
        assert_eq!(images.remove(&app).await, Ok(Removal::Removed));
        assert_eq!(images.remove(&app).await, Ok(Removal::Gone));
        let left = images.look().await.expect("answers");
        assert_eq!(left.images.iter().map(|image| &image.id).collect::<Vec<_>>(), [&base.id]);
        assert_eq!(images.measure().await, Ok(base.bytes));
    });
}
