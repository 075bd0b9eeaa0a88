//! The log on standard error: as text, as JSON, or with the priorities of the journal.

use std::{
    fmt,
    io::{self, IsTerminal},
};

use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    filter::Targets,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use super::{Usage, format::Look};

/// The variable with the format for processes that the agent starts.
pub(super) const FORMAT: &str = "WEIR_LOG_FORMAT";

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Time, level and message, for people
    Text,
    /// One JSON object a line
    Json,
    /// The message after its priority, as journald reads it
    Journal,
}

impl LogFormat {
    /// Its word on the command line.
    pub(super) fn word(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
            LogFormat::Journal => "journal",
        }
    }

    /// The format in the environment, text without one.
    ///
    /// # Errors
    /// The variable has another word.
    pub(super) fn of_environment() -> Result<LogFormat, Usage> {
        let Ok(word) = std::env::var(FORMAT) else { return Ok(LogFormat::Text) };
        let bad = |_| Usage(format!("cannot read `{word}` in {FORMAT}: write text, json or journal"));
        LogFormat::from_str(&word, false).map_err(bad)
    }
}

/// Sends the log to standard error. The level is `info`, or the value of `WEIR_LOG` (`weir=debug`,
/// `warn,weir_datapath=trace`).
pub(super) fn log_to_stderr(format: LogFormat) -> anyhow::Result<()> {
    let text = std::env::var("WEIR_LOG").unwrap_or_else(|_| "info".to_owned());
    let filter: Targets = text
        .parse()
        .map_err(|e| Usage(format!("cannot read `{text}` in WEIR_LOG: {e}; write info, or weir=debug")))?;
    tracing_subscriber::registry().with(layer(format, io::stderr)).with(filter).init();
    Ok(())
}

fn layer<S, W>(format: LogFormat, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        // The forwarder may outlive the reader of its log. It would panic when it says so there.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let colour = io::stderr().is_terminal() && Look::of_stdout().colour;
            layer.with_ansi(colour).with_target(false).boxed()
        }
        format => layer.with_ansi(false).event_format(Lines(format)).boxed(),
    }
}

/// Writes events as lines of JSON or of the journal.
struct Lines(LogFormat);

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let data = event.metadata();
        if self.0 == LogFormat::Json {
            writeln!(to, "{}", fields.json(Timestamp::now(), *data.level(), data.target()))
        } else {
            write!(to, "{}", fields.journal(*data.level()))
        }
    }
}

/// The message and the fields of an event.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => drop(self.others.insert(name.to_owned(), value)),
        }
    }

    /// One object: `time`, `level`, `target`, `message`, and the fields by their names.
    fn json(self, now: Timestamp, level: Level, target: &str) -> Value {
        let mut object = Map::new();
        object.insert("time".to_owned(), format!("{now:.3}").into());
        object.insert("level".to_owned(), level.as_str().to_ascii_lowercase().into());
        object.insert("target".to_owned(), target.into());
        object.insert("message".to_owned(), self.message.into());
        for (name, value) in self.others {
            // No field replaces one of the four.
            object.entry(name).or_insert(value);
        }
        Value::Object(object)
    }

    /// Lines with the priority of sd-daemon(3), because the journal takes each line as an entry.
    fn journal(self, level: Level) -> String {
        let priority = match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let mut text = self.message;
        for (name, value) in &self.others {
            text += &format!(" {name}={value}");
        }
        let lines = weir_api::plain_lines(&text);
        lines.lines().map(|line| format!("<{priority}>{line}\n")).collect()
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log of a few events in this format.
    fn logged(format: LogFormat) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::registry().with(layer(format, move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let none: Option<&str> = None;
            tracing::info!(class = Some("web"), agreement = none, "policy-changed: {}", "weight=2");
            tracing::warn!(tries = 3_u64, level = "forged", "the file has a fault:\n  \u{1b}[31mline \"2\"");
            tracing::error!("no link");
        });
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_line_of_json_is_one_object_with_time_level_and_fields() {
        let text = logged(LogFormat::Json);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3, "{text}");
        let field = |i: usize, name: &str| lines[i][name].clone();
        assert_eq!((field(0, "level"), field(0, "class")), ("info".into(), "web".into()));
        assert_eq!(field(0, "message"), "policy-changed: weight=2");
        assert_eq!(field(0, "target"), module_path!());
        assert!(lines[0].get("agreement").is_none(), "{text}");
        // The text of a fault cannot forge a line or a level.
        assert_eq!((field(1, "level"), field(1, "tries")), ("warn".into(), 3.into()));
        assert_eq!(field(1, "message"), "the file has a fault:\n  \u{1b}[31mline \"2\"");
        assert_eq!(field(2, "level"), "error");
        for line in &lines {
            let time: Timestamp = line["time"].as_str().unwrap().parse().unwrap();
            assert!(Timestamp::now().duration_since(time).as_secs() < 60);
        }
    }

    #[test]
    fn each_line_of_the_journal_begins_with_its_priority() {
        let text = logged(LogFormat::Journal);
        let wanted = "<6>policy-changed: weight=2 class=\"web\"\n<4>the file has a fault:\n\
            <4>  ?[31mline \"2\" level=\"forged\" tries=3\n<3>no link\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn text_has_level_message_and_fields() {
        let text = logged(LogFormat::Text);
        let first = text.lines().next().unwrap();
        assert!(first.contains(" INFO policy-changed: weight=2 class=\"web\""), "{first}");
    }
}
