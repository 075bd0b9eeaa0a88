//! `weir cni`: a chained CNI plugin. It tells the agent of a pod, and waits until the pod's class is in force.

mod config;
mod result;

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    io::{self, Read},
    path::Path,
    process::ExitCode,
};

use clap::Args;
use serde_json::{Value, json};
use weir_api::{Client, CniAttached, CniAttachment, CniKeep, CniKey};

use self::config::{Config, OnError};
use super::Session;

/// The versions of CNI that the plugin speaks, oldest first.
const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The variable by which a runtime tells a plugin what to do.
const COMMAND: &str = "CNI_COMMAND";

/// Error codes of the CNI specification, and one of weir's own.
const INCOMPATIBLE_VERSION: u32 = 1;
const INVALID_ENVIRONMENT: u32 = 4;
const IO_FAILURE: u32 = 5;
const CANNOT_DECODE: u32 = 6;
const INVALID_CONFIG: u32 = 7;
const TRY_AGAIN_LATER: u32 = 11;
const NOT_AVAILABLE: u32 = 50;
const NOT_AS_ASKED: u32 = 100;

const EXAMPLES: &str = "Examples:
  echo '{\"cniVersion\": \"1.0.0\"}' | CNI_COMMAND=VERSION weir cni   its versions
  ln -s \"$(command -v weir)\" /opt/cni/bin/   where a runtime looks for it
  CNI_PATH=/opt/cni/bin cnitool add pods /run/netns/blue   a pod by hand

A container runtime runs a plugin by the name of its type, without arguments.
This program behaves as the plugin then. It stands at the end of a list, as in
/etc/cni/net.d/10-pods.conflist:
  {
    \"cniVersion\": \"1.0.0\",
    \"name\": \"pods\",
    \"plugins\": [
      { \"type\": \"bridge\", \"bridge\": \"cni0\", \"isGateway\": true, \"ipMasq\": true,
        \"ipam\": { \"type\": \"host-local\", \"subnet\": \"10.88.0.0/16\" } },
      { \"type\": \"portmap\", \"capabilities\": { \"portMappings\": true } },
      { \"type\": \"weir\", \"onError\": \"open\",
        \"capabilities\": { \"bandwidth\": true,
                          \"io.kubernetes.cri.pod-annotations\": true } }
    ]
  }

The pod's class is called NAMESPACE/POD, or by the container's id where no pod
is named. It is in force before the pod's first packet. The pod may ask for,
the strongest first:
  annotations            weir.dev/weight, weir.dev/min, weir.dev/max,
                         weir.dev/group
  CNI_ARGS               WEIR_WEIGHT, WEIR_MIN, WEIR_MAX, WEIR_GROUP
  the list               egressRate, in bit/s, as for the plugin `bandwidth`
  capability bandwidth   egressRate (annotation kubernetes.io/egress-bandwidth)
  the list               weight, min, max, group: for pods of this network that
                         ask for nothing
`[labels]` of the agent's configuration bounds all of these. A wish without
sense is ignored, with a remark in `weir explain` and an event. ingressRate is
a maximum of what arrives. It needs [link] download, and is not enforced
without it.

More keys of the list:
  socket    where the agent listens, if not at /run/weir/weir.sock
  onError   \"open\" (default): while the agent is away a pod starts unshaped,
            with a line on standard error. \"refuse\": it does not start (error
            11), and STATUS fails with 50

It speaks CNI 0.3.1, 0.4.0, 1.0.0 and 1.1.0.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CniArgs {}

/// The arguments of this process. A container runtime runs a plugin without any.
pub(crate) fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = given.collect();
    if all.len() == 1 && std::env::var_os(COMMAND).is_some() {
        all.push("cni".into());
    }
    all
}

pub(super) fn run(session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let environment = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let call = Call { environment: &environment, socket: &session.socket };
    let answer = call.answer(&mut io::stdin().lock());
    for note in &answer.notes {
        super::say(&mut io::stderr(), note);
    }
    write!(session.out, "{}", answer.output)?;
    Ok(if answer.is_error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// An error of the CNI specification.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    code: u32,
    message: String,
}

fn fail<T>(code: u32, message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { code, message: message.into() })
}

/// The output and the end of a call.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    /// Standard output.
    output: String,
    /// Lines of standard error.
    notes: Vec<String>,
    is_error: bool,
}

/// A call by a runtime.
struct Call<'a> {
    environment: &'a dyn Fn(&str) -> Option<String>,
    /// Where the agent listens unless the configuration says otherwise.
    socket: &'a Path,
}

impl Call<'_> {
    fn answer(&self, stdin: &mut dyn Read) -> Answer {
        let mut notes = Vec::new();
        let mut version = VERSIONS[VERSIONS.len() - 1].to_owned();
        match self.carry_out(stdin, &mut version, &mut notes) {
            Ok(output) => Answer { output: output.map_or_else(String::new, text), notes, is_error: false },
            Err(Failure { code, message }) => {
                notes.push(message.clone());
                let error = json!({ "cniVersion": version, "code": code, "msg": message });
                Answer { output: text(error), notes, is_error: true }
            }
        }
    }

    /// Does what the runtime asks. `version` becomes the version of the request.
    fn carry_out(
        &self,
        stdin: &mut dyn Read,
        version: &mut String,
        notes: &mut Vec<String>,
    ) -> Result<Option<Value>, Failure> {
        let command = self.variable(COMMAND)?;
        // The runtime has to be able to end what it began, whatever has become of the configuration.
        if command == "DEL" {
            if let Err(why) = self.detach(stdin) {
                notes.push(format!("cannot tell the agent that the pod is over: {}", why.message));
            }
            return Ok(None);
        }
        if !["ADD", "CHECK", "GC", "STATUS", "VERSION"].contains(&command.as_str()) {
            let known = "ADD, DEL, CHECK, GC, STATUS and VERSION";
            return fail(INVALID_ENVIRONMENT, format!("{COMMAND} is `{command}`: weir knows {known}"));
        }
        let config = Config::read(stdin)?;
        version.clone_from(&config.version);
        if command == "VERSION" {
            return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
        }
        let since = match command.as_str() {
            "ADD" => VERSIONS[0],
            "CHECK" => VERSIONS[1],
            _ => VERSIONS[3],
        };
        let place = |version: &str| VERSIONS.iter().position(|known| *known == version);
        let Some(asked) = place(version) else {
            let message = format!("weir speaks CNI {}, and this is {version}", VERSIONS.join(", "));
            return fail(INCOMPATIBLE_VERSION, message);
        };
        if Some(asked) < place(since) {
            return fail(
                INCOMPATIBLE_VERSION,
                format!("CNI {version} has no {command}, which came with {since}"),
            );
        }
        let client = self.client(&config)?;
        match command.as_str() {
            "ADD" => self.attach(&config, &client, notes).map(Some),
            "CHECK" => self.check(&config, &client).map(|()| None),
            "GC" => collect(&config, &client, notes).map(|()| None),
            _ => status(&config, &client).map(|()| None),
        }
    }

    fn variable(&self, name: &str) -> Result<String, Failure> {
        match (self.environment)(name) {
            Some(value) if !value.is_empty() => Ok(value),
            _ => fail(
                INVALID_ENVIRONMENT,
                format!("{name} is not set: a container runtime runs `weir cni` (see `weir cni --help`)"),
            ),
        }
    }

    fn client(&self, config: &Config) -> Result<Client, Failure> {
        let socket = config.socket()?;
        Ok(Client::new(socket.unwrap_or_else(|| self.socket.to_owned())))
    }

    fn key(&self) -> Result<CniKey, Failure> {
        let (container, interface) = (self.variable("CNI_CONTAINERID")?, self.variable("CNI_IFNAME")?);
        Ok(CniKey { container, interface })
    }

    fn attachment(&self, config: &Config) -> Result<CniAttachment, Failure> {
        let arguments = (self.environment)("CNI_ARGS").unwrap_or_default();
        config.attachment(self.key()?, self.variable("CNI_NETNS")?.into(), &arguments)
    }

    /// ADD: the pod's class is in force when this returns, or `onError` decides.
    fn attach(&self, config: &Config, client: &Client, notes: &mut Vec<String>) -> Result<Value, Failure> {
        let on_error = config.on_error()?;
        let result = result::of(config)?;
        let attachment = self.attachment(config)?;
        let why = match client.cni_attach(&attachment) {
            Ok(CniAttached { class, remarks, fault }) => {
                notes.extend(remarks.iter().map(|remark| format!("{}: {remark}", class.name)));
                fault.map(|why| format!("its class {} is not in force: {why}", class.name))
            }
            Err(why) => Some(weir_units::chain(&why)),
        };
        if let Some(why) = why {
            let key = &attachment.key;
            match on_error {
                OnError::Open => notes.push(format!("{key} starts unshaped: {why}")),
                OnError::Refuse => {
                    return fail(
                        TRY_AGAIN_LATER,
                        format!("{key} cannot be shaped, and onError is refuse: {why}"),
                    );
                }
            }
        }
        Ok(result)
    }

    fn detach(&self, stdin: &mut dyn Read) -> Result<(), Failure> {
        let key = self.key()?;
        // A configuration that cannot be read only loses the place of the socket.
        let config = Config::read(stdin).unwrap_or_default();
        let client = self.client(&config)?;
        client.cni_detach(&key).map_err(|e| Failure { code: IO_FAILURE, message: weir_units::chain(&e) })?;
        Ok(())
    }

    fn check(&self, config: &Config, client: &Client) -> Result<(), Failure> {
        let attachment = self.attachment(config)?;
        let CniAttached { class, .. } = client.cni_check(&attachment).map_err(|e| match e {
            weir_api::ClientError::Refused(why) => Failure { code: NOT_AS_ASKED, message: why.to_string() },
            e => Failure { code: TRY_AGAIN_LATER, message: weir_units::chain(&e) },
        })?;
        match class.not_enforced_because {
            None if class.enforced => Ok(()),
            why => {
                let why = why.unwrap_or_else(|| "the agent does not say why".to_owned());
                fail(NOT_AS_ASKED, format!("class {} is not what was asked for: {why}", class.name))
            }
        }
    }
}

/// GC: the agent forgets what is not valid. It learns of ended namespaces by itself too.
fn collect(config: &Config, client: &Client, notes: &mut Vec<String>) -> Result<(), Failure> {
    let keep = CniKeep { network: config.network()?, valid: config.valid_attachments()? };
    let on_error = config.on_error()?;
    match (client.cni_keep(&keep), on_error) {
        (Ok(_), _) => Ok(()),
        (Err(why), OnError::Open) => {
            notes.push(format!("the agent forgets nothing now: {}", weir_units::chain(&why)));
            Ok(())
        }
        (Err(why), OnError::Refuse) => fail(TRY_AGAIN_LATER, weir_units::chain(&why)),
    }
}

/// STATUS: an agent that is away stops pods only if `onError` is `refuse`.
fn status(config: &Config, client: &Client) -> Result<(), Failure> {
    match (config.on_error()?, client.status()) {
        (OnError::Refuse, Err(why)) => fail(
            NOT_AVAILABLE,
            format!("pods cannot start, as onError is refuse: {}", weir_units::chain(&why)),
        ),
        _ => Ok(()),
    }
}

/// A line of JSON.
fn text(value: Value) -> String {
    format!("{value}\n")
}
