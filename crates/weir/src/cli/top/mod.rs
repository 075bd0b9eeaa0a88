//! `weir top`: a live view of the classes.
//!
//! The module has three parts. [`state`] decides, and [`draw`] and [`tabs`] show. This file handles the outside:
//! the thread that asks the agent, and the terminal.

mod bar;
mod columns;
mod direction;
mod draw;
mod ink;
mod panel;
mod screen;
mod state;
mod tab;
mod tabs;

#[cfg(test)]
mod tests;

use std::{
    process::ExitCode,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::{SignalKind, signal};
use weir_api::{Client, ClientError, SetPolicies};

use super::{Look, Session, Usage};
use direction::Direction;
use ink::Ink;
use screen::Screen;
use state::{Action, Sort, State, Update};
use tab::Tab;

const EXAMPLES: &str = "Examples:
  weir top               full screen, once a second
  weir top --sort name   a steady order
  weir top --down        what arrives, where the download is shared
  weir top --once        one frame as text, for a log or a mail
  weir top --json        status and classes, one object a second, for programs

Keys:
  up, down   select a class, whose last minute is shown below
  + -        change its weight, at once
  e          explain why it gets what it gets
  s          sort by rate, allocation, backlog, drops, weight, name
  /          show only names and groups that contain a text
  d          what arrives, and what leaves again
  l          the next link, where several are shared
  p          pause, and go on
  1 to 4     classes, agreements, images, congestion control; Tab opens the
             next one
  q          quit

ALLOWED is what a class may send now, as ALLOCATED of `weir ps`. WAIT is the
time in which its queue drains at that rate. A class's bar goes from 0 to the
link's capacity: what it sends or receives, what it may have beyond that, [ its
minimum, ] its maximum.";

/// How often the agent is asked.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TopArgs {
    /// Print one frame as text, and end
    #[arg(long)]
    once: bool,
    /// Begin with what arrives by the link
    #[arg(long)]
    down: bool,
    /// The first sort key
    #[arg(long, value_enum, default_value_t = Sort::Rate, value_name = "COLUMN")]
    sort: Sort,
}

pub(super) fn run(args: &TopArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let direction = if args.down { Direction::Down } else { Direction::Up };
    let state = State::new(session.client.address(), args.sort, direction);
    if session.json {
        return figures(args.once, session);
    }
    if args.once {
        return one_frame(state, session);
    }
    if !session.look.terminal {
        return Err(Usage("`weir top` needs a terminal; use --once or --json here".to_owned()).into());
    }
    // The agent answers quickly on a local socket. A second attempt is better than a long wait.
    let client = session.client.clone().with_timeout(Duration::from_secs(3));
    full_screen(state, &client, session.look)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints one frame as wide as the terminal, or 100 characters wide.
fn one_frame(mut state: State, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    state.apply(sample(&session.client)?);
    if let Some(note) = state.note.as_ref().filter(|note| note.bad) {
        anyhow::bail!("{}", note.text);
    }
    let width =
        if session.look.terminal { crossterm::terminal::size().map_or(100, |(width, _)| width) } else { 100 };
    write!(session.out, "{}", draw::as_text(&state, width))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints status and classes as JSON, once or every second.
fn figures(once: bool, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    loop {
        let (status, classes) = (session.client.status()?, session.client.classes()?);
        serde_json::to_writer(
            &mut *session.out,
            &serde_json::json!({ "status": status, "classes": classes }),
        )?;
        writeln!(session.out)?;
        session.out.flush()?;
        if once {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(EVERY);
    }
}

fn sample(client: &Client) -> Result<Update, ClientError> {
    Ok(Update::Sample(Box::new(client.status()?), client.classes()?))
}

/// An event for the screen's thread.
enum Input {
    Terminal(Event),
    Update(Update),
    /// A signal, or the loss of the terminal.
    End,
}

/// Sends [`Input::End`] at the first SIGTERM, SIGHUP or SIGINT.
fn end_on_signal(tell: Sender<Input>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // From here on a signal no longer ends the process immediately.
    let [mut term, mut hup, mut int] = {
        let _entered = runtime.enter();
        let [term, hup, int] =
            [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()].map(signal);
        [term?, hup?, int?]
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = term.recv() => {}
                _ = hup.recv() => {}
                _ = int.recv() => {}
            }
        });
        let _ = tell.send(Input::End);
    });
    Ok(())
}

/// Takes the terminal and restores it at the end. The end may be a panic of any thread, SIGTERM, SIGHUP
/// or SIGINT.
fn full_screen(state: State, client: &Client, look: Look) -> anyhow::Result<()> {
    let (tell, inbox) = mpsc::channel();
    end_on_signal(tell.clone()).context("cannot listen for signals")?;
    let mut terminal = screen::take().context("cannot take over the terminal")?;
    let result = watch(&mut terminal, state, client, look, &tell, &inbox);
    screen::restore();
    result
}

fn watch(
    terminal: &mut Screen,
    mut state: State,
    client: &Client,
    look: Look,
    tell: &Sender<Input>,
    inbox: &Receiver<Input>,
) -> anyhow::Result<()> {
    let (ask, asked) = mpsc::channel();
    // Neither thread is joined: one may wait for the agent, and the other for a key.
    let (client, figures, keys) = (client.clone(), EndOnDrop(tell.clone()), EndOnDrop(tell.clone()));
    thread::spawn(move || ask_the_agent(&client, &asked, &figures.0));
    // Keys have their own thread, because reading spins after the terminal is gone.
    thread::spawn(move || read_the_terminal(&keys.0));
    let ink = Ink { colour: look.colour };
    loop {
        terminal.draw(|frame| draw::frame(&state, ink, frame.area(), frame.buffer_mut()))?;
        // All waiting events go into one frame.
        for input in std::iter::once(inbox.recv()?).chain(inbox.try_iter()) {
            match input {
                Input::End => return Ok(()),
                Input::Update(update) => state.apply(update),
                Input::Terminal(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    match state.press(key) {
                        Action::Quit => return Ok(()),
                        Action::None => {}
                        action => drop(ask.send(action)),
                    }
                }
                // Other events, such as a new size, only need a new frame.
                Input::Terminal(_) => {}
            }
        }
    }
}

fn read_the_terminal(tell: &Sender<Input>) {
    while let Ok(event) = event::read() {
        if tell.send(Input::Terminal(event)).is_err() {
            return;
        }
    }
}

/// Ends the program when its thread ends, also by a panic. The panic hook has restored the terminal by
/// then.
struct EndOnDrop(Sender<Input>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        drop(self.0.send(Input::End));
    }
}

/// Asks for the figures every second, and for the keys' requests between.
fn ask_the_agent(client: &Client, asked: &Receiver<Action>, tell: &Sender<Input>) {
    let mut next = Instant::now();
    let mut explained = None;
    let mut tab = Tab::Classes;
    loop {
        let update = match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                next = Instant::now() + EVERY;
                let explain = explained.as_deref().map(|name| explain(client, name));
                let sample = sample(client).unwrap_or_else(|e| Update::Silence(e.to_string()));
                let page = shown(client, tab);
                explain.into_iter().chain([sample]).chain(page).collect()
            }
            Ok(Action::Explain(name)) => {
                explained = name;
                explained.as_deref().map(|name| explain(client, name)).into_iter().collect()
            }
            Ok(Action::Show(other)) => {
                tab = other;
                shown(client, tab).into_iter().collect()
            }
            Ok(Action::Set(change)) => {
                let changed = client.set(&SetPolicies { changes: vec![change], allow_absent: false });
                vec![Update::Changed(changed.map_err(|e| e.to_string()))]
            }
            Ok(Action::None | Action::Quit) => Vec::<Update>::new(),
        };
        for update in update {
            if tell.send(Input::Update(update)).is_err() {
                return;
            }
        }
    }
}

/// The text of a tab; none for the classes, which each sample has.
fn shown(client: &Client, tab: Tab) -> Option<Update> {
    (tab != Tab::Classes).then(|| Update::Page(tab, tabs::page(tab, client)))
}

fn explain(client: &Client, name: &str) -> Update {
    Update::Explained(client.explain(name).map(Box::new).map_err(|e| e.to_string()))
}
