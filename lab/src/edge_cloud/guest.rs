//! Measurements in another kernel in virtual time, which other load on the machine does not affect.
//!
//! * A User-Mode-Linux kernel, a process whose clock stands still while anything runs
//!   (`time-travel=inf-cpu`). `scripts/uml-kernel.sh` builds it, and it needs no rights. Its root is this
//!   machine's, read only. Processor time costs nothing there, so the guest gives no figures about speed. A
//!   seed gives the same times to the nanosecond, for each algorithm and load. The start takes 1.2 s, and
//!   each MB 10 ms.
//! * The virtual machine of weir's own tests (`testing/vm`) under qemu, with an unmodified kernel; slower.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use weir_netlab::{
    interrupt,
    topology::{Netns, Proc, check_rights, command, last_words, tunnel, unique_prefix},
};

use super::{
    iperf::Generator,
    measure::measure,
    network::Medium,
    report::{Missing, Report},
    scenario::{Algorithm, Case, Scenario, Sweep},
};

use crate::{agreements::harness, options::Options};

/// Environment variable with the path of the User-Mode-Linux kernel, if it is not in the script's directory.
const VARIABLE: &str = "WEIR_UML";
/// The guest's first process.
const INIT: &str = include_str!("init.sh");
/// Memory limit of a guest, which takes only as much as it uses.
const MEMORY: &str = "mem=1G";
/// The start of a guest's clock, ns since the epoch. It is constant, so that runs are equal.
const START_TIME: &str = "time-travel-start=1767225600000000000";
/// Time limit of a guest. It takes some seconds to minutes, more on a busy machine.
const GUEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// The place where completion times are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A User-Mode-Linux kernel in virtual time.
    Uml,
    /// This kernel, in real time; it needs netem.
    Here,
    /// Another kernel under qemu, in virtual time.
    Vm,
    /// This kernel, in real time, with links in user space, for a kernel without netem.
    Wires,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backend::Uml => "User-Mode Linux, virtual time",
            Backend::Here => "namespaces and netem",
            Backend::Wires => "namespaces and links in user space, real time",
            Backend::Vm => "qemu, virtual time",
        })
    }
}

/// Runs a scenario in the requested back end, or in the first available one of [`Backend`].
///
/// `watch` is called once for each measurement. Without a back end nothing is measured, and the report gives
/// the reason.
///
/// # Errors
/// If the requested back end is missing (with the remedy), a measurement fails, or on Ctrl-C.
pub fn run(
    scenario: &Scenario,
    options: &Options,
    backend: Option<Backend>,
    generator: Generator,
    watch: &mut (dyn FnMut(&Case, Algorithm) + Send),
) -> Result<Report> {
    let is_real = |backend| matches!(backend, Backend::Here | Backend::Wires);
    if let (Generator::Iperf3, Some(backend)) = (generator, backend.filter(|backend| !is_real(*backend))) {
        bail!("iperf3 is for real time (--backend wires or here), not for {backend}");
    }
    let backend = match backend {
        None if generator == Generator::Iperf3 => {
            if netem().is_ok() {
                Backend::Here
            } else {
                Backend::Wires
            }
        }
        Some(backend) => backend,
        None => match first_there(options) {
            Ok(backend) => backend,
            Err(why) => {
                let lacks = |algorithm: &Algorithm| Missing { algorithm: *algorithm, why: why.clone() };
                let missing = scenario.algorithms.iter().map(lacks).collect();
                return Ok(Report::here(scenario, options.seed, Vec::new(), missing));
            }
        },
    };
    match backend {
        Backend::Here | Backend::Wires => {
            let medium = if backend == Backend::Here { Medium::Netem } else { Medium::Wires };
            let (rows, missing) = measure(scenario, medium, generator, options.seed, watch)?;
            let by = if generator == Generator::Iperf3 { ", by iperf3" } else { "" };
            Ok(Report::new(scenario, format!("{backend}{by}"), options.seed, rows, missing))
        }
        Backend::Uml => {
            let kernel = uml()?;
            guests(scenario, options, backend, watch, &|dir, seed| in_uml(&kernel, dir, options, seed))
        }
        Backend::Vm => {
            let program = harness(&options.weir)
                .context("no weir-vm here (cargo build -p weir-vm; or its path in WEIR_VM_PROGRAM)")?;
            guests(scenario, options, backend, watch, &|dir, seed| in_vm(&program, dir, options, seed))
        }
    }
}

/// The first available back end, or the reasons why no back end works.
fn first_there(options: &Options) -> Result<Backend, String> {
    let Err(no_uml) = uml() else { return Ok(Backend::Uml) };
    let Err(no_netem) = netem() else { return Ok(Backend::Here) };
    if harness(&options.weir).is_some() {
        return Ok(Backend::Vm);
    }
    let Err(no_wires) = wires() else { return Ok(Backend::Wires) };
    Err(format!(
        "{no_uml:#}; {no_netem:#}; no weir-vm here (cargo build -p weir-vm); no links in user space: {no_wires:#}"
    ))
}

/// Whether links in user space can be made, as [`Backend::Wires`] needs.
///
/// # Errors
/// The missing part: rights, or tunnel devices.
pub fn wires() -> Result<()> {
    check_rights()?;
    let netns = Netns::create(&format!("{}wires", unique_prefix()))?;
    tunnel(&netns, "try").map(drop)
}

/// Whether this kernel can delay packets, as [`Backend::Here`] needs.
///
/// # Errors
/// The missing part: rights, or netem.
pub fn netem() -> Result<()> {
    check_rights()?;
    let netns = Netns::create(&format!("{}netem", unique_prefix()))?;
    netns.tc("qdisc add dev lo root netem delay 1ms\n").context("this kernel has no netem")
}

/// The path of the User-Mode-Linux kernel.
///
/// # Errors
/// Without one, with the searched path and the script that builds it.
pub fn uml() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        let path = PathBuf::from(named);
        anyhow::ensure!(path.is_file(), "{VARIABLE} is {}, which is not there", path.display());
        return Ok(path);
    }
    let home = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")));
    let path = cache.context("neither HOME nor XDG_CACHE_HOME is set")?.join("weir/uml/linux");
    anyhow::ensure!(
        path.is_file(),
        "no User-Mode-Linux kernel at {} (scripts/uml-kernel.sh builds it)",
        path.display()
    );
    Ok(path)
}

/// The parts of a scenario that guests measure in parallel: one seed and one round trip each.
fn parts(scenario: &Scenario, first_seed: u64) -> Vec<(Scenario, u64)> {
    let whole = Scenario { seeds: 1, findings: Vec::new(), paper_sweep: None, ..scenario.clone() };
    let slices: Vec<Scenario> = match &scenario.sweep {
        None => vec![whole],
        Some(sweep) => sweep
            .rtt_ms
            .iter()
            .map(|&rtt_ms| {
                let sweep = Some(Sweep { rtt_ms: vec![rtt_ms], ..sweep.clone() });
                Scenario { sweep, ..whole.clone() }
            })
            .collect(),
    };
    (first_seed..)
        .take(scenario.seeds)
        .flat_map(|seed| slices.iter().map(move |slice| (slice.clone(), seed)))
        .collect()
}

/// A guest: measures the scenario in a directory with a seed.
type Guest<'a, R> = &'a (dyn Fn(&Path, u64) -> Result<R> + Sync);

/// Measures all parts and joins their reports.
fn guests(
    scenario: &Scenario,
    options: &Options,
    backend: Backend,
    watch: &mut (dyn FnMut(&Case, Algorithm) + Send),
    guest: Guest<'_, Report>,
) -> Result<Report> {
    let parts = parts(scenario, options.seed);
    let mut told = |part: &Scenario, report: &Report| {
        for row in &report.rows {
            let case = part.cases.iter().find(|case| case.name == row.case);
            case.into_iter().for_each(|case| watch(case, row.algorithm));
        }
    };
    let reports = side_by_side(&parts, backend, &mut told, guest)?;
    let kernel = reports.first().map_or(String::new(), |report| report.head.kernel.clone());
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for report in reports {
        rows.extend(report.rows);
        missing.extend(report.missing);
    }
    missing.dedup();
    let mut report = Report::new(scenario, backend.to_string(), options.seed, rows, missing);
    report.head.kernel = kernel;
    Ok(report)
}

/// Lets guests measure the parts, each with its seed, as many at once as there are processors.
///
/// Returns the reports in the order of the parts. `told` is called at the end of each part.
fn side_by_side<S: Serialize + Sync, R: Send>(
    parts: &[(S, u64)],
    backend: Backend,
    told: &mut (dyn FnMut(&S, &R) + Send),
    guest: Guest<'_, R>,
) -> Result<Vec<R>> {
    let (next, told) = (AtomicUsize::new(0), Mutex::new(told));
    let worker = |cpu: usize| -> Result<Vec<(usize, R)>> {
        // A guest is two processes that alternate. On two processors each change would wake one up.
        if backend == Backend::Uml {
            stay_on(cpu)?;
        }
        let mut done = Vec::new();
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let Some((part, seed)) = parts.get(nth) else { return Ok(done) };
            let report =
                one(part, *seed, guest).inspect_err(|_| next.store(parts.len(), Ordering::Relaxed))?;
            if let Ok(mut told) = told.lock() {
                told(part, &report);
            }
            done.push((nth, report));
        }
    };
    let processors = processors()?;
    let mut reports = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let (places, worker) = (processors.iter().take(parts.len()), &worker);
        let workers: Vec<_> = places.map(|&cpu| scope.spawn(move || worker(cpu))).collect();
        for worker in workers {
            reports.extend(worker.join().unwrap_or_else(|_| Err(anyhow!("a guest's thread panicked")))?);
        }
        Ok(())
    })?;
    reports.sort_by_key(|(nth, _)| *nth);
    Ok(reports.into_iter().map(|(_, report)| report).collect())
}

/// Lets User-Mode-Linux guests measure parts that are no [`Scenario`].
///
/// # Errors
/// If there is no such kernel, or one of them fails.
pub(super) fn in_virtual_time<S: Serialize + Sync, R: DeserializeOwned + Send>(
    parts: &[(S, u64)],
    options: &Options,
    told: &mut (dyn FnMut(&S, &R) + Send),
) -> Result<Vec<R>> {
    let kernel = uml()?;
    side_by_side(parts, Backend::Uml, told, &|dir, seed| in_uml(&kernel, dir, options, seed))
}

/// The processors that this process may use.
fn processors() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("cannot tell which processors there are")?;
    Ok((0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect())
}

/// Keeps the calling thread and its children on one processor.
fn stay_on(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &only))
        .with_context(|| format!("cannot stay on processor {cpu}"))
}

fn one<S: Serialize, R>(part: &S, seed: u64, guest: Guest<'_, R>) -> Result<R> {
    interrupt::check()?;
    let dir = tempfile::tempdir().context("cannot create a directory for the guest")?;
    let text = toml::to_string(part).context("cannot write the guest's scenario")?;
    fs::write(dir.path().join("scenario.toml"), text).context("cannot write the guest's scenario")?;
    guest(dir.path(), seed)
}

fn in_uml<R: DeserializeOwned>(kernel: &Path, dir: &Path, options: &Options, seed: u64) -> Result<R> {
    let weir = options.weir.canonicalize().context("cannot find the weir program")?;
    let job = format!("seed={seed}\nweir='{}'\n", weir.display());
    fs::write(dir.join("job"), job).context("cannot write the guest's job")?;
    fs::write(dir.join("init"), INIT).context("cannot write the guest's first program")?;
    let mut linux = command(&kernel.to_string_lossy());
    // The guest gets its directory, not its name: the name would change its random numbers.
    linux.current_dir(dir).args([MEMORY, "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"]);
    linux.args(["init=/bin/sh", "time-travel=inf-cpu", START_TIME, "ipv6.disable=1", "quiet", "panic=-1"]);
    linux.args(["umid=weir", "uml_dir=.", "con=null", "con0=null,fd:1", "--", "/proc/self/cwd/init"]);
    let mut linux = Proc::start(linux)?;
    let ended = linux.finish(Instant::now() + GUEST_TIMEOUT);
    interrupt::check()?;
    let said = |file| fs::read_to_string(dir.join(file)).unwrap_or_default();
    if let Some(report) = read(&said("report.json")) {
        return report;
    }
    let errors = said("errors");
    let words =
        if errors.trim().is_empty() { last_words(&linux.output()?) } else { errors.trim().to_owned() };
    bail!("the guest of seed {seed} gave no report ({}): {words}", how(ended))
}

fn in_vm(program: &Path, dir: &Path, options: &Options, seed: u64) -> Result<Report> {
    const FILE: &str = "/scenario.toml";
    let mut harness = command(&program.to_string_lossy());
    harness.args(["exec", "--timeout", &GUEST_TIMEOUT.as_secs().to_string(), "--file"]);
    harness.arg(format!("{}:{FILE}", dir.join("scenario.toml").display()));
    harness.args(["--", "weir", "lab", "run", FILE, "--json", "--backend", "here", "--out", "/tmp/results"]);
    harness.args(["--seed", &seed.to_string()]);
    if std::env::var_os("WEIR_BIN").is_none() {
        harness.env("WEIR_BIN", &options.weir);
    }
    let mut harness = Proc::start(harness)?;
    let ended = harness.finish(Instant::now() + GUEST_TIMEOUT);
    interrupt::check()?;
    let output = harness.output()?;
    match read(&output.stdout) {
        Some(report) => report,
        None => bail!("the guest of seed {seed} gave no report ({}): {}", how(ended), last_words(&output)),
    }
}

fn how(ended: Result<weir_netlab::topology::Output>) -> String {
    ended.err().map_or_else(|| "it ended".to_owned(), |error| format!("{error:#}"))
}

/// The guest's report, if it got that far.
fn read<R: DeserializeOwned>(said: &str) -> Option<Result<R>> {
    let line = said.lines().find(|line| line.starts_with("{\"scenario\""))?;
    Some(serde_json::from_str(line).context("cannot read the guest's report"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            report::{Row, tests::sample},
            scenario::tests::scenario,
        },
        *,
    };

    #[test]
    fn guests_measure_together_what_the_scenario_asks_and_nothing_twice() {
        for name in ["ecc-bbr", "ecc-sweep"] {
            let scenario = scenario(name);
            let parts = parts(&scenario, 7);
            let steps: usize = parts.iter().map(|(part, _)| part.steps()).sum();
            assert_eq!(steps, scenario.steps(), "{name}");
            let mut points: Vec<_> = parts
                .iter()
                .flat_map(|(part, seed)| part.points().into_iter().map(move |p| (*seed, p)))
                .collect();
            let all = points.len();
            points.sort_by(|a, b| a.partial_cmp(b).unwrap());
            points.dedup();
            assert_eq!(points.len(), all);
            assert!(parts.iter().all(|(_, seed)| (7..7 + scenario.seeds as u64).contains(seed)));
            for (part, _) in &parts {
                let written = toml::to_string(part).unwrap();
                assert_eq!(toml::from_str::<Scenario>(&written).unwrap(), *part);
            }
        }
    }

    #[test]
    fn what_guests_say_is_joined_in_the_order_of_their_parts() {
        let whole = sample("ecc-cubic", |_, case| case.len() as f64);
        let options = Options { weir: "/bin/true".into(), seed: 1, link: String::new() };
        let own = |seed: u64| {
            // The first guest is the slowest.
            thread::sleep(Duration::from_millis(40 / seed));
            let rows: Vec<Row> = whole.rows.iter().filter(|row| row.seed == seed).cloned().collect();
            Ok(Report { rows, ..whole.clone() })
        };
        let scenario = Scenario { seeds: 3, ..whole.settings.clone() };
        let mut seen = 0;
        let joined =
            guests(&scenario, &options, Backend::Uml, &mut |_, _| seen += 1, &|_, seed| own(seed)).unwrap();
        assert_eq!(seen, scenario.steps());
        let seeds: Vec<u64> = joined.rows.iter().map(|row| row.seed).collect();
        assert!(seeds.is_sorted() && joined.rows.len() == whole.rows.len(), "{seeds:?}");
        assert_eq!(joined.head.pass, whole.head.pass);
    }

    #[test]
    fn a_guest_that_fails_ends_the_run_with_its_words() {
        let scenario = scenario("ecc-cubic");
        let options = Options { weir: "/bin/true".into(), seed: 1, link: String::new() };
        let fail = |_: &Path, seed: u64| -> Result<Report> { bail!("no luck with {seed}") };
        let error = guests(&scenario, &options, Backend::Uml, &mut |_, _| {}, &fail).unwrap_err();
        assert!(error.to_string().contains("no luck"), "{error:#}");
    }
}
