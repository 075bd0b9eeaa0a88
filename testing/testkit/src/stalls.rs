//! Whether this machine stood still, and measurements that count once.

use std::{
    fmt::{self, Debug, Display, Formatter},
    marker::PhantomData,
    panic::Location,
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// The time between two beats of a processor.
const BEAT: Duration = Duration::from_millis(2);
/// A beat that is later than this is a stall, in which a link loses time.
const MIN_STALL: Duration = Duration::from_millis(3);
/// One stall of this length spoils a measurement.
const MIN_LONG_STALL: Duration = Duration::from_millis(30);
/// Stalls that add up to this part of a measurement spoil it: half of what a full link may miss.
const MAX_STALLED: f64 = 0.005;
/// The time between two looks of [`wait_within`].
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// [`wait_within`] ends after this time by the wall clock, and this many times its limit.
const MIN_WALL_LIMIT: Duration = Duration::from_secs(10);
const WALL_LIMITS: u32 = 10;
/// A figure is cut to this many characters in the report.
const MAX_FIGURE: usize = 160;

/// Gives this thread real-time priority. Returns false where the right to it is missing.
///
/// A busy machine then delays the thread less than 1 ms.
pub fn set_realtime() -> bool {
    set_fifo(1)
}

/// The real-time priority of this thread, until the value is dropped. Other processes then delay it less than 1 ms.
///
/// The thread has to sleep often, because it keeps all others from its processor. Without the right to it, the thread
/// stays as it is.
#[derive(Debug)]
#[must_use = "the priority ends with this value"]
pub struct Realtime {
    /// The policy before.
    was: i32,
    _of_this_thread: PhantomData<*const ()>,
}

impl Realtime {
    /// Gives this thread the priority.
    pub fn begin() -> Realtime {
        // SAFETY: a plain system call; 0 is the calling thread.
        let was = unsafe { libc::sched_getscheduler(0) };
        set_realtime();
        Realtime { was, _of_this_thread: PhantomData }
    }
}

impl Drop for Realtime {
    fn drop(&mut self) {
        if self.was != libc::SCHED_FIFO {
            set_scheduler(libc::SCHED_OTHER, 0);
        }
    }
}

fn set_fifo(priority: i32) -> bool {
    set_scheduler(libc::SCHED_FIFO, priority)
}

fn set_scheduler(policy: i32, priority: i32) -> bool {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: a plain system call on a valid structure; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const priority) == 0 }
}

fn pin_to(processor: usize) -> nix::Result<()> {
    let mut only = CpuSet::new();
    only.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only))
}

/// The stalls so far.
#[derive(Debug, Default)]
struct Seen {
    /// Start and end of each that is over.
    ended: Vec<(Instant, Instant)>,
    /// The last beat of each processor.
    beats: Vec<Instant>,
}

impl Seen {
    /// Those that are over, and those that go on at `now`.
    fn all(&self, now: Instant) -> Vec<(Instant, Instant)> {
        let beats = self.beats.iter().map(|beat| (*beat, now));
        self.ended.iter().copied().chain(beats.filter(is_stall)).collect()
    }
}

/// Whether the time between two beats is that of a stall.
fn is_stall((last, now): &(Instant, Instant)) -> bool {
    now.saturating_duration_since(*last) > BEAT + MIN_STALL
}

/// Watches each processor from now until it is dropped.
///
/// A thread a processor sleeps for 2 ms again and again, at real-time priority. A thread that
/// wakes 3 ms late marks a stall: packets did not move either.
#[derive(Debug)]
pub struct Stalls {
    seen: Arc<Mutex<Seen>>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stalls {
    /// Begins to watch. Each thread has its processor and its priority when this returns.
    #[must_use]
    pub fn watch() -> Stalls {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let beats = vec![Instant::now(); processors];
        let seen = Arc::new(Mutex::new(Seen { ended: Vec::new(), beats }));
        let end = Arc::<AtomicBool>::default();
        let begun = Arc::new(Barrier::new(processors + 1));
        let beat = |processor: usize| {
            let (seen, end, begun) = (seen.clone(), end.clone(), begun.clone());
            thread::spawn(move || {
                // A thread that may not be pinned beats on another processor.
                let _ = pin_to(processor);
                set_realtime();
                begun.wait();
                let mut last = Instant::now();
                while !end.load(Ordering::Relaxed) {
                    thread::sleep(BEAT);
                    let now = Instant::now();
                    let beat = (last, now);
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.ended.extend(is_stall(&beat).then_some(beat));
                    seen.beats[processor] = now;
                    last = now;
                }
            })
        };
        let threads = (0..processors).map(beat).collect();
        begun.wait();
        // A thread may have waited long for the others.
        let now = Instant::now();
        seen.lock().unwrap_or_else(PoisonError::into_inner).beats.iter_mut().for_each(|beat| *beat = now);
        Stalls { seen, end, threads }
    }

    /// The longest stall of at least 30 ms that overlaps the time between two moments.
    #[must_use]
    pub fn longest(&self, from: Instant, to: Instant) -> Option<Duration> {
        self.longest_above(MIN_LONG_STALL, from, to)
    }

    /// The longest stall of at least `least` that overlaps the time between two moments.
    fn longest_above(&self, least: Duration, from: Instant, to: Instant) -> Option<Duration> {
        let seen = self.all();
        let overlaps = seen.iter().filter(|s| s.0 < to && s.1 > from);
        overlaps.map(|s| s.1 - s.0).max().filter(|longest| *longest > BEAT + least)
    }

    /// The time between two moments in which at least one processor stood still.
    #[must_use]
    pub fn total(&self, from: Instant, to: Instant) -> Duration {
        let mut seen = self.all();
        seen.sort();
        let (mut total, mut counted) = (Duration::ZERO, from);
        for (start, end) in seen {
            // A beat that is in time takes this long too.
            let (start, end) = ((start + BEAT).max(counted), end.min(to));
            total += end.saturating_duration_since(start);
            counted = counted.max(end);
        }
        total
    }

    fn all(&self) -> Vec<(Instant, Instant)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).all(Instant::now())
    }

    /// How long the machine stood still between two moments, if that spoils what was measured meanwhile. One
    /// stall of `long` does.
    fn spoiling(&self, long: Duration, from: Instant, to: Instant) -> Option<Duration> {
        let total = self.total(from, to);
        let is_spoilt =
            self.longest_above(long, from, to).is_some() || total > (to - from).mul_f64(MAX_STALLED);
        is_spoilt.then_some(total)
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether time passes by executed instructions, as in the guest of `make test-vm`.
///
/// Another load then moves no figure, and no measurement is repeated.
#[must_use]
pub fn in_virtual_time() -> bool {
    std::env::var("WEIR_VM").is_ok_and(|time| time == "instructions")
}

/// Measures once and returns the result.
///
/// A bad result counts, unless the machine stood still while it was measured: for 30 ms at once, or
/// for 0.5 % of the time. Then one second measurement counts, and a line with both figures says so.
/// `scripts/test-report.sh` collects these lines. Nothing is repeated in virtual time.
#[track_caller]
pub fn measure_once<T: Debug>(measure: impl FnMut() -> T, good: impl Fn(&T) -> bool) -> T {
    measure_unless_still(MIN_LONG_STALL, measure, good)
}

/// Measures as [`measure_once`] does, where one stall of `long` spoils the result: the spread of a few times, say.
#[track_caller]
pub fn measure_unless_still<T: Debug>(
    long: Duration,
    mut measure: impl FnMut() -> T,
    good: impl Fn(&T) -> bool,
) -> T {
    if in_virtual_time() {
        return measure();
    }
    let (stalls, begin) = (Stalls::watch(), Instant::now());
    let first = measure();
    if good(&first) {
        return first;
    }
    let Some(stall) = stalls.spoiling(long, begin, Instant::now()) else { return first };
    let second = measure();
    println!("{}", measured_twice(Location::caller(), stall, &first, &second));
    second
}

/// A wait that was not over in its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late<E> {
    /// The last miss of a look. `None` if the first look missed nothing, and ended too late.
    pub missing: Option<E>,
    /// The time in which the machine ran.
    pub ran: Duration,
    /// The time by the wall clock.
    pub passed: Duration,
}

impl<E: Debug> Display for Late<E> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Late { missing, ran, passed } = self;
        match missing {
            Some(missing) => write!(f, "{missing:?}")?,
            None => write!(f, "a first look of that length")?,
        }
        write!(f, " (after {} ms, in which the machine ran {} ms)", passed.as_millis(), ran.as_millis())
    }
}

/// Looks every 10 ms until nothing is missing. Returns the time that this took.
///
/// Only the time in which the machine ran counts against `limit`: the agent and the kernel did nothing while it
/// stood still. In virtual time all of it counts. The look that misses nothing ends within the limit.
///
/// # Errors
/// [`Late`] after the limit, or after 10 s and 10 times the limit by the wall clock.
pub fn wait_within<E>(limit: Duration, look: impl FnMut() -> Result<(), E>) -> Result<Duration, Late<E>> {
    let stalls = (!in_virtual_time()).then(Stalls::watch);
    let stood = |begin, now| stalls.as_ref().map_or(Duration::ZERO, |stalls| stalls.total(begin, now));
    wait_beside(stood, limit, look)
}

/// As [`wait_within`], where `stood` tells how long the machine stood still between two moments.
fn wait_beside<E>(
    stood: impl Fn(Instant, Instant) -> Duration,
    limit: Duration,
    mut look: impl FnMut() -> Result<(), E>,
) -> Result<Duration, Late<E>> {
    let longest = MIN_WALL_LIMIT + limit * WALL_LIMITS;
    let begin = Instant::now();
    let mut missing = None;
    loop {
        let found = look();
        let now = Instant::now();
        let passed = now - begin;
        let ran = passed.saturating_sub(stood(begin, now));
        let is_found = found.is_ok();
        missing = found.err().or(missing);
        if ran > limit || (!is_found && passed > longest) {
            return Err(Late { missing, ran, passed });
        }
        if is_found {
            return Ok(passed);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Sleeps until the machine has run for this time. The time in which it stood still is added.
///
/// # Panics
/// The machine has not run for this time after 10 s and 10 times the time by the wall clock.
#[track_caller]
pub fn sleep_running(time: Duration) {
    let Err(late) = wait_within(time, || Err::<(), ()>(())) else { return };
    assert!(late.ran > time, "the machine ran for {:?} in {:?}, and not for {time:?}", late.ran, late.passed);
}

fn measured_twice(place: &Location<'_>, stall: Duration, first: &impl Debug, second: &impl Debug) -> String {
    let figure = |value: &dyn Debug| format!("{value:?}").chars().take(MAX_FIGURE).collect::<String>();
    format!(
        "MEASURED TWICE: {place}: the machine stood still for {} ms; first {}, second {}",
        stall.as_millis(),
        figure(first),
        figure(second)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tests that stall the same processor delay each other.
    static PROCESSOR: Mutex<()> = Mutex::new(());

    /// Keeps processor 0 from every other thread, at a priority above the watch.
    fn stall(time: Duration) -> bool {
        let spin = move || {
            if pin_to(0).is_err() || !set_fifo(2) {
                return false;
            }
            let begin = Instant::now();
            while begin.elapsed() < time {}
            true
        };
        thread::spawn(spin).join().expect("it spins")
    }

    const STALL: Duration = Duration::from_millis(120);

    #[test]
    fn a_processor_that_serves_no_other_thread_is_a_stall() {
        let _alone = PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner);
        let stalls = Stalls::watch();
        let begin = Instant::now();
        if !stall(STALL) {
            return println!("SKIPPED: real-time priority (CAP_SYS_NICE) is missing here");
        }
        let end = Instant::now();
        thread::sleep(Duration::from_millis(20));
        let longest = stalls.longest(begin, end).expect("it was seen");
        assert!(longest >= Duration::from_millis(100), "{longest:?} of 120 ms");
        let before = begin.checked_sub(Duration::from_secs(1)).expect("the machine is older");
        assert_eq!(stalls.longest(before, before), None);
    }

    #[test]
    fn short_stalls_add_up_until_they_spoil_a_measurement() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        // Two processors stop at once for 10 ms, one for 4 ms, and one for 20 ms after the measurement.
        let ended = vec![(at(100), at(112)), (at(104), at(112)), (at(500), at(506)), (at(1000), at(1022))];
        let stalls = of(Seen { ended, beats: Vec::new() });
        assert_eq!(stalls.total(begin, at(1000)), Duration::from_millis(14));
        assert_eq!(stalls.total(at(108), at(505)), Duration::from_millis(7));
        assert_eq!(stalls.longest(begin, at(1000)), None, "none took 30 ms");
        let spoiling = |long, end| stalls.spoiling(Duration::from_millis(long), begin, at(end));
        assert_eq!(spoiling(30, 1000), Some(Duration::from_millis(14)));
        assert_eq!(spoiling(30, 4000), Some(Duration::from_millis(34)));
        assert_eq!(spoiling(30, 8000), None, "0.5 % are 40 ms");
        assert_eq!(spoiling(15, 8000), Some(Duration::from_millis(34)), "one took 20 ms");
    }

    fn of(seen: Seen) -> Stalls {
        Stalls { seen: Arc::new(Mutex::new(seen)), end: Arc::default(), threads: Vec::new() }
    }

    #[test]
    fn stall_that_goes_on_counts_before_it_ends() {
        let now = Instant::now();
        let before = |millis| now.checked_sub(Duration::from_millis(millis)).expect("the machine is older");
        let stalls = of(Seen { ended: Vec::new(), beats: vec![before(102), now] });
        assert_eq!(stalls.total(before(1000), now), Duration::from_millis(100));
        assert!(stalls.longest(before(1000), now).is_some());
        assert_eq!(stalls.total(before(1000), before(200)), Duration::ZERO);
    }

    #[test]
    fn wait_that_is_too_long_fails_unless_the_machine_stood_still() {
        let _alone = PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner);
        const LIMIT: Duration = Duration::from_millis(80);
        let begin = Instant::now();
        let late = || if begin.elapsed() > LIMIT * 4 { Ok(()) } else { Err("it is not there") };
        let late = wait_within(LIMIT, late).expect_err("it is late");
        assert_eq!(late.missing, Some("it is not there"));
        assert!(begin.elapsed() > LIMIT, "{:?}", begin.elapsed());

        let begin = Instant::now();
        let mut could = true;
        let mut is_first = true;
        let stalled = || {
            if std::mem::take(&mut is_first) {
                could &= stall(STALL);
            }
            if begin.elapsed() > STALL + LIMIT / 2 { Ok(()) } else { Err("it is not there") }
        };
        let took = wait_within(LIMIT, stalled);
        if !could {
            return println!("SKIPPED: real-time priority (CAP_SYS_NICE) is missing here");
        }
        assert!(took.as_ref().is_ok_and(|took| *took > STALL), "{took:?} with a stall of {STALL:?}");
    }

    #[test]
    fn look_that_ends_after_the_limit_is_late_though_it_misses_nothing() {
        const LIMIT: Duration = Duration::from_millis(40);
        let slow = |takes: Duration| {
            move || {
                thread::sleep(takes);
                Ok::<(), ()>(())
            }
        };
        let ran = |_, _| Duration::ZERO;
        let late = wait_beside(ran, LIMIT, slow(LIMIT * 2)).expect_err("it is late");
        assert_eq!(late.missing, None);
        assert!(late.ran >= LIMIT * 2, "{late}");
        let mut looks = 0;
        let second = || {
            looks += 1;
            thread::sleep(LIMIT * 2 / 3);
            if looks == 1 { Err("it is not there") } else { Ok(()) }
        };
        let late = wait_beside(ran, LIMIT, second).expect_err("it is late");
        assert_eq!(late.missing, Some("it is not there"));
        assert!(wait_beside(|_, _| LIMIT * 2, LIMIT, slow(LIMIT * 2)).is_ok(), "the machine stood still");
    }

    #[test]
    fn wait_on_a_machine_that_stands_still_ends_by_the_wall_clock() {
        let (limit, begin) = (Duration::from_millis(1), Instant::now());
        let stands = |from: Instant, to: Instant| to - from;
        let late = wait_beside(stands, limit, || Err::<(), _>("it is not there")).expect_err("it is late");
        assert_eq!((late.missing, late.ran), (Some("it is not there"), Duration::ZERO));
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }

    #[test]
    fn a_bad_result_is_measured_again_only_after_a_stall() {
        let _alone = PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner);
        let mut looks = 0;
        let look = || {
            looks += 1;
            looks
        };
        assert_eq!(measure_once(look, |_| false), 1, "a machine that ran gets one look");

        let mut looks = 0;
        let mut could = true;
        let measure = || {
            looks += 1;
            could &= stall(STALL);
            thread::sleep(Duration::from_millis(20));
            looks
        };
        let result = measure_once(measure, |looks| *looks == 3);
        if !could {
            return println!("SKIPPED: real-time priority (CAP_SYS_NICE) is missing here");
        }
        assert_eq!(result, 2, "a second look counts, a third one does not happen");
    }

    #[test]
    fn a_second_measurement_is_told_with_both_figures() {
        let line =
            measured_twice(Location::caller(), Duration::from_millis(45), &0.125, &Duration::from_secs(2));
        assert!(line.starts_with("MEASURED TWICE: "), "{line}");
        assert!(line.ends_with("stood still for 45 ms; first 0.125, second 2s"), "{line}");
    }
}
