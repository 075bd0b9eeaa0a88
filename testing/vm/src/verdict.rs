//! Reads a guest's output: tests counted, kernel's complaints, whether it came to the end.

/// Read line by line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The job's exit code, once it has ended.
    pub(crate) code: Option<i32>,
    /// Tests that passed, by the summaries of libtest.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Lines with which tests say that they cannot run.
    pub(crate) skipped: Vec<String>,
    /// Warnings, bugs and panics of the kernel.
    pub(crate) complaints: Vec<String>,
}

impl Verdict {
    /// Takes the next line into account.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("weir-vm: job ended with ") {
            self.code = rest.split(',').next().and_then(|code| code.parse().ok());
        } else if let Some(at) = line.find("test result: ") {
            let number = |what: &str| {
                let words: Vec<&str> = line[at..].split([' ', ';', '.']).filter(|w| !w.is_empty()).collect();
                let at = words.iter().position(|word| *word == what)?;
                words.get(at.checked_sub(1)?)?.parse::<u64>().ok()
            };
            self.passed += number("passed").unwrap_or(0);
            self.failed += number("failed").unwrap_or(0);
        } else if let Some(at) = line.find("SKIPPED") {
            self.skipped.push(line[at..].to_owned());
        } else if complains(line) {
            self.complaints.push(line.to_owned());
        }
    }

    /// The fault, if any; `tests` says that tests were to run.
    pub(crate) fn faults(&self, tests: bool) -> Vec<String> {
        let mut faults: Vec<String> =
            self.complaints.iter().map(|line| format!("the kernel complained: {line}")).collect();
        match self.code {
            None => faults.push("the guest ended before its job did".to_owned()),
            Some(0) => {}
            Some(code) => faults.push(format!("the job ended with {code}")),
        }
        if self.failed > 0 {
            faults.push(format!("{} tests failed", self.failed));
        }
        if tests && self.passed == 0 {
            faults.push("no test passed".to_owned());
        }
        faults
    }
}

/// Whether this is the kernel's own line, `[   12.345678] ...`, about a fault of its own.
fn complains(line: &str) -> bool {
    let Some((time, text)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) else {
        return false;
    };
    let stamped =
        time.trim().split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let words =
        ["WARNING:", "BUG:", "BUG ", "Oops", "Kernel panic", "general protection fault", "rcu: INFO:"];
    stamped && words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &[&str]) -> Verdict {
        let mut verdict = Verdict::default();
        lines.iter().for_each(|line| verdict.read(line));
        verdict
    }

    const END: &str = "weir-vm: job ended with 0, 12.5 s";
    const TWO: &str =
        "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 4.2s";

    #[test]
    fn a_run_whose_tests_passed_is_without_faults() {
        let read = verdict(&["test a ... ok", TWO, TWO, "SKIPPED: no fq", END]);
        assert_eq!((read.passed, read.skipped.len(), read.faults(true)), (4, 1, Vec::new()));
    }

    #[test]
    fn a_run_without_tests_without_an_end_or_with_a_failure_has_faults() {
        assert_eq!(verdict(&[END]).faults(true), ["no test passed"]);
        assert_eq!(verdict(&[END]).faults(false), Vec::<String>::new());
        assert_eq!(verdict(&[TWO]).faults(true), ["the guest ended before its job did"]);
        let failed = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        let read = verdict(&[failed, "weir-vm: job ended with 101, 3.1 s"]);
        assert_eq!(read.faults(true), ["the job ended with 101", "2 tests failed"]);
    }

    #[test]
    fn the_kernels_warnings_are_faults_and_those_of_programs_are_not() {
        let warned = "[   12.345678] WARNING: CPU: 0 PID: 1 at net/sched/sch_htb.c:1";
        assert_eq!(verdict(&[TWO, warned, END]).faults(true).len(), 1);
        let said = ["WARNING: of a program", "[note] WARNING: of a program", "[    0.1] all is well"];
        assert!(verdict(&[&said[..], &[TWO, END]].concat()).faults(true).is_empty());
    }
}
