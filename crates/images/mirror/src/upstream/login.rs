//! With what the mirror logs in: a password in a file, or what `docker login` left.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use crate::{Registry, name::DOCKER_IO, settings::UpstreamSettings};

/// Docker's name of Docker Hub.
const HUB: &str = "https://index.docker.io/v1/";

/// Credentials of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Login {
    /// A user, and the file with the password or token alone in it.
    Password(String, PathBuf),
    /// Docker's `config.json`, with credential helpers if it names some.
    Docker(PathBuf),
}

/// The credentials for a registry, or its token service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Secret {
    /// `user:password`.
    Password(String),
    /// An identity token, which a token service exchanges for others (OAuth 2, `refresh_token`).
    Identity(String),
}

/// The part of `config.json` that is read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    auths: HashMap<String, Auth>,
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Auth {
    /// `user:password` in base64.
    auth: String,
    identitytoken: String,
}

/// A credential helper's answer.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Credentials {
    username: String,
    secret: String,
}

impl Login {
    pub(super) fn of(settings: &UpstreamSettings) -> Option<Login> {
        let password = settings.username.clone().zip(settings.password_file.clone());
        let password = password.map(|(user, file)| Login::Password(user, file));
        password.or_else(|| settings.docker_config.clone().map(Login::Docker))
    }

    /// The secret for a registry, read each time: it may be renewed.
    ///
    /// * `time_limit`: for a credential helper.
    ///
    /// # Errors
    /// The attempt, its object, and the reason of the failure; no secret.
    pub(super) async fn secret(&self, registry: &Registry, time_limit: Duration) -> Result<Secret, String> {
        let read = |file: &Path| {
            std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))
        };
        match self {
            Login::Password(user, file) => Ok(Secret::Password(format!("{user}:{}", read(file)?.trim_end()))),
            Login::Docker(file) => {
                // The error's text would have a part of the file in it.
                let config: Config = serde_json::from_slice(read(file)?.as_bytes()).map_err(|e| {
                    format!(
                        "cannot read {}: line {} is not what docker login writes",
                        file.display(),
                        e.line()
                    )
                })?;
                let here = |why: String| format!("{} in {}", why, file.display());
                config.secret(registry, time_limit).await.map_err(here)
            }
        }
    }
}

impl Config {
    /// In Docker's order: the registry's helper, the helper of all, what is in the file.
    async fn secret(&self, registry: &Registry, time_limit: Duration) -> Result<Secret, String> {
        let named = |key: &str| {
            let host = key.split_once("://").map_or(key, |(_, rest)| rest).split('/').next();
            host == Some(registry.as_str()) || (key == HUB && registry.as_str() == DOCKER_IO)
        };
        let server = self.auths.keys().find(|key| named(key)).map(String::as_str);
        let usual = if registry.as_str() == DOCKER_IO { HUB } else { registry.as_str() };
        let helper =
            self.cred_helpers.iter().find(|(key, _)| named(key)).map(|(key, helper)| (helper, key.as_str()));
        let helper = helper.or_else(|| Some((self.creds_store.as_ref()?, server.unwrap_or(usual))));
        if let Some((helper, server)) = helper {
            return ask(helper, server, time_limit).await;
        }
        let auth = server.and_then(|server| self.auths.get(server));
        let auth = auth.ok_or_else(|| format!("no login for {registry}"))?;
        if !auth.identitytoken.is_empty() {
            return Ok(Secret::Identity(auth.identitytoken.clone()));
        }
        let text = STANDARD.decode(&auth.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.map(|text| text.trim_end_matches('\0').to_owned()).filter(|text| text.contains(':'));
        text.map(Secret::Password).ok_or_else(|| format!("a login for {registry} that is not user:password"))
    }
}

/// Asks `docker-credential-HELPER get` for a server.
async fn ask(helper: &str, server: &str, time_limit: Duration) -> Result<Secret, String> {
    if !helper.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
        return Err(format!("a credential helper `{helper}`, which is no name,"));
    }
    ask_program(&format!("docker-credential-{helper}"), server, time_limit).await
}

async fn ask_program(program: &str, server: &str, time_limit: Duration) -> Result<Secret, String> {
    let cannot = |why: String| format!("cannot ask {program} for {server}: {why}; it is named");
    let asked = async {
        let mut command = Command::new(program);
        command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().map_err(|e| cannot(e.to_string()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read it says itself what it wants.
            let _ = stdin.write_all(format!("{server}\n").as_bytes()).await;
        }
        child.wait_with_output().await.map_err(|e| cannot(e.to_string()))
    };
    let done = timeout(time_limit, asked)
        .await
        .map_err(|_| cannot(format!("no answer within {time_limit:?}")))??;
    if !done.status.success() {
        return Err(cannot(done.status.to_string()));
    }
    let found: Credentials = serde_json::from_slice(&done.stdout)
        .map_err(|_| cannot("its answer has no Username and Secret".to_owned()))?;
    if found.username == "<token>" {
        return Ok(Secret::Identity(found.secret));
    }
    Ok(Secret::Password(format!("{}:{}", found.username, found.secret)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LOGIN_TIMEOUT: Duration = Duration::from_secs(20);

    fn password(text: &str) -> Secret {
        Secret::Password(text.to_owned())
    }

    async fn of(config: &str, registry: &str) -> Result<Secret, String> {
        let config: Config = serde_json::from_str(config).unwrap();
        config.secret(&registry.parse().unwrap(), LOGIN_TIMEOUT).await
    }

    #[tokio::test]
    async fn what_docker_login_left_is_found_by_the_registrys_name() {
        let config = r#"{ "auths": {
            "https://index.docker.io/v1/": { "auth": "aHViOm9uZQ==" },
            "ghcr.io": { "auth": "Z2hjcjp0d286dHdv" },
            "https://quay.io": { "auth": "cXVheTp0aHJlZQ==" },
            "token.example": { "identitytoken": "x" },
            "bad.example": { "auth": "eA==" } } }"#;
        assert_eq!(of(config, "docker.io").await.unwrap(), password("hub:one"));
        assert_eq!(of(config, "ghcr.io").await.unwrap(), password("ghcr:two:two"));
        assert_eq!(of(config, "quay.io").await.unwrap(), password("quay:three"));
        assert_eq!(of(config, "token.example").await.unwrap(), Secret::Identity("x".to_owned()));
        for (registry, why) in [("none.example", "no login"), ("bad.example", "not user:password")] {
            let said = of(config, registry).await.unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[tokio::test]
    async fn helpers_are_asked_and_those_that_are_silent_or_refuse_are_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let helper = |name: &str, script: &str| {
            let file = dir.path().join(format!("docker-credential-{name}"));
            std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            // Named by its path, so that PATH may stay.
            format!("{}", file.display())
        };
        let good = helper(
            "good",
            r#"read s; test "$1 $s" = "get ghcr.io" && echo '{"ServerURL":"'$s'","Username":"bot","Secret":"x:y"}'"#,
        );
        let run = |program: String, time_limit: Duration| async move {
            ask_program(&program, "ghcr.io", time_limit).await
        };
        assert_eq!(run(good, LOGIN_TIMEOUT).await.unwrap(), password("bot:x:y"));
        let token = helper("token", r#"echo '{"Username":"<token>","Secret":"x"}'"#);
        assert_eq!(run(token, LOGIN_TIMEOUT).await.unwrap(), Secret::Identity("x".to_owned()));
        for (script, time_limit, why) in [
            ("exit 1", LOGIN_TIMEOUT, "exit status: 1"),
            ("echo no", LOGIN_TIMEOUT, "no Username"),
            ("sleep 60", Duration::from_millis(200), "no answer within"),
        ] {
            let said = run(helper("bad", script), time_limit).await.unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        let said = of(r#"{ "credsStore": "../x" }"#, "ghcr.io").await.unwrap_err();
        assert!(said.contains("no name"), "{said}");
        let said = of(r#"{ "credHelpers": { "ghcr.io": "weir-none" } }"#, "ghcr.io").await.unwrap_err();
        assert!(said.contains("docker-credential-weir-none"), "{said}");
    }
}
