//! The state of `weir top`, and the effect of keys and update on it. It uses no clock, terminal or
//! socket. Effects are returned as an [`Action`].

use std::collections::{HashMap, HashSet, VecDeque};

use clap::ValueEnum;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_api::{Class, ClassKind, Explanation, OtherLink, PolicyChange, Status};
use weir_share::Weight;
use weir_units::BitRate;

use super::{direction::Direction, tab::Tab};

/// The length of the selected class's history, seconds.
pub(super) const HISTORY: usize = 60;

/// The largest scroll position. Explanations are shorter, and the frame stops at their end.
const MAX_SCROLL: u16 = 200;

/// The sort key of the lines. The largest value comes first; names are sorted from a to z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    Rate,
    Allocation,
    Backlog,
    Drops,
    Weight,
    Name,
}

impl Sort {
    fn next(self) -> Sort {
        let all = Sort::value_variants();
        let place = all.iter().position(|&sort| sort == self).unwrap_or(0);
        all[(place + 1) % all.len()]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Allocation => "allocation",
            Sort::Backlog => "backlog",
            Sort::Drops => "drops",
            Sort::Weight => "weight",
            Sort::Name => "name",
        }
    }

    /// The sort value. Larger values come first.
    fn key(self, class: &Class) -> u64 {
        match self {
            Sort::Rate => class.rate.0,
            Sort::Allocation => class.allocation.0,
            Sort::Backlog => class.backlog.0,
            Sort::Drops => class.drops,
            Sort::Weight => class.policy.weight.get().into(),
            Sort::Name => 0,
        }
    }
}

/// The present meaning of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    /// Keys are commands.
    Table,
    /// Letters change the filter.
    Filter,
    /// The explanation is open.
    Explain,
}

/// A message from the agent's thread.
#[derive(Debug)]
pub(super) enum Update {
    /// The agent's figures, once a second.
    Sample(Box<Status>, Vec<Class>),
    /// The reason why there is no answer.
    Silence(String),
    /// The result of a change.
    Changed(Result<Vec<Class>, String>),
    /// The requested explanation.
    Explained(Result<Box<Explanation>, String>),
    /// The text of a tab.
    Page(Tab, Result<String, String>),
}

/// The effect of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// No effect beyond a new frame.
    None,
    /// Ends the program.
    Quit,
    /// Sends this change to the agent.
    Set(PolicyChange),
    /// Requests this class's explanation, now and every second. `None` stops that.
    Explain(Option<String>),
    /// Requests this tab's text, now and every second.
    Show(Tab),
}

/// A message below the table about the last change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) text: String,
    pub(super) bad: bool,
    /// The number of samples until it disappears.
    left: u8,
}

impl Note {
    fn good(text: String) -> Option<Note> {
        Some(Note { text, bad: false, left: 4 })
    }

    fn bad(text: String) -> Option<Note> {
        Some(Note { text, bad: true, left: 10 })
    }
}

/// The identity of a class. It also distinguishes classes of two sources with one name.
pub(super) fn id(class: &Class) -> String {
    format!("{}:{}", class.source, class.name)
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) class: &'a Class,
    /// Whether it is shown below its group.
    pub(super) member: bool,
}

/// The content of a frame.
#[derive(Debug)]
pub(super) struct State {
    /// The agent's socket, for the message if it does not answer.
    pub(super) socket: String,
    pub(super) direction: Direction,
    /// The device of the link that is shown; none: the main one.
    pub(super) link: Option<String>,
    /// The figures of the link and the direction that are shown.
    pub(super) status: Option<Status>,
    pub(super) classes: Vec<Class>,
    /// The last sample, of all links and both directions.
    sample: Option<(Status, Vec<Class>)>,
    /// The last rates by the class's [`id`]: newest last, at most [`HISTORY`].
    pub(super) history: HashMap<String, VecDeque<BitRate>>,
    /// The number of the colour by the class's [`id`]. A class keeps its colour while it exists.
    pub(super) colours: HashMap<String, usize>,
    /// The reason of a missing answer, and the number of failed attempts.
    pub(super) silence: Option<(String, u64)>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) tab: Tab,
    /// The text of a tab other than the classes, once it has come.
    pub(super) page: Option<Result<String, String>>,
    /// Its first visible line.
    pub(super) line: usize,
    pub(super) paused: bool,
    /// The [`id`] of the selected class, once one was selected.
    pub(super) selected: Option<String>,
    pub(super) note: Option<Note>,
    pub(super) explanation: Option<Result<Box<Explanation>, String>>,
    /// The first visible line of the explanation.
    pub(super) scroll: u16,
}

impl State {
    pub(super) fn new(socket: String, sort: Sort, direction: Direction) -> State {
        State {
            socket,
            direction,
            link: None,
            sample: None,
            status: None,
            classes: Vec::new(),
            history: HashMap::new(),
            colours: HashMap::new(),
            silence: None,
            sort,
            filter: String::new(),
            mode: Mode::Table,
            tab: Tab::Classes,
            page: None,
            line: 0,
            paused: false,
            selected: None,
            note: None,
            explanation: None,
            scroll: 0,
        }
    }

    /// The lines in their order: sorted, with each group's members below it.
    pub(super) fn lines(&self) -> Vec<Line<'_>> {
        let needle = self.filter.to_lowercase();
        let hit = |text: &str| text.to_lowercase().contains(&needle);
        let mut shown: Vec<&Class> =
            self.classes.iter().filter(|c| hit(&c.name) || c.group.as_deref().is_some_and(hit)).collect();
        shown.sort_by(|a, b| self.sort.key(b).cmp(&self.sort.key(a)).then_with(|| a.name.cmp(&b.name)));
        let groups: HashSet<&str> =
            shown.iter().filter(|c| c.kind == ClassKind::Group).map(|c| c.name.as_str()).collect();
        let member = |class: &Class| {
            class.kind != ClassKind::Group
                && class.group.as_deref().is_some_and(|group| groups.contains(group))
        };
        let mut lines = Vec::with_capacity(shown.len());
        let mut not_yet = groups.clone();
        for class in shown.iter().filter(|class| !member(class)) {
            lines.push(Line { class, member: false });
            if class.kind == ClassKind::Group && not_yet.remove(class.name.as_str()) {
                let own = shown.iter().filter(|c| member(c) && c.group.as_ref() == Some(&class.name));
                lines.extend(own.map(|class| Line { class, member: true }));
            }
        }
        lines
    }

    /// The selected class if it is visible, else the class of the first line.
    pub(super) fn selected(&self) -> Option<&Class> {
        let lines = self.lines();
        let chosen = lines.iter().find(|line| self.is_selected(line.class));
        chosen.or(lines.first()).map(|line| line.class)
    }

    fn is_selected(&self, class: &Class) -> bool {
        self.selected.as_ref().is_some_and(|selected| *selected == id(class))
    }

    /// The name that the agent knows the class by. It includes the source if two classes share the
    /// name.
    fn asked_as(&self, class: &Class) -> String {
        match self.classes.iter().filter(|other| other.name == class.name).count() {
            0 | 1 => class.name.clone(),
            _ => id(class),
        }
    }

    /// Applies a message from the agent's thread.
    pub(super) fn apply(&mut self, update: Update) {
        match update {
            Update::Sample(status, classes) => {
                if self.status.as_ref().is_some_and(|old| old.pid != status.pid) {
                    self.note = Note::good("the agent has been restarted".to_owned());
                } else if let Some(note) = &mut self.note {
                    note.left = note.left.saturating_sub(1);
                }
                self.note.take_if(|note| note.left == 0);
                self.silence = None;
                if !self.paused {
                    self.sample = Some((*status, classes));
                    self.show_sample();
                }
            }
            Update::Silence(why) => {
                let tries = self.silence.take().map_or(0, |(_, tries)| tries);
                self.silence = Some((why, tries + 1));
            }
            Update::Changed(Ok(changed)) => {
                let Some((status, _)) = &self.sample else { return };
                let (status, changed) = self.of_link(status, &changed);
                let shown = self.direction.of(&status, &changed).map_or(Vec::new(), |(_, classes)| classes);
                for class in shown {
                    self.note = Note::good(format!("{} has weight {} now", class.name, class.policy.weight));
                    if let Some(known) = self.classes.iter_mut().find(|known| id(known) == id(&class)) {
                        *known = class;
                    }
                }
            }
            Update::Changed(Err(why)) => self.note = Note::bad(why),
            Update::Page(tab, page) => {
                if self.tab == tab && !(self.paused && self.page.is_some()) {
                    self.page = Some(page);
                }
            }
            Update::Explained(explained) => {
                if self.mode == Mode::Explain {
                    self.explanation = Some(explained);
                }
            }
        }
    }

    /// Shows the last sample in the chosen direction, or what leaves if the node does not share the other.
    fn show_sample(&mut self) {
        let Some((status, classes)) = &self.sample else { return };
        let (status, classes) = self.of_link(status, classes);
        let Some((status, classes)) = self.direction.of(&status, &classes) else {
            let text = "this node does not share its download: `[link] download = \"50mbit\"` does";
            (self.direction, self.note) = (Direction::Up, Note::bad(text.to_owned()));
            return self.show_sample();
        };
        self.remember(&classes);
        (self.status, self.classes) = (Some(status), classes);
    }

    /// The figures of the link that is shown. A link that is gone from the configuration is the main one.
    fn of_link(&self, status: &Status, classes: &[Class]) -> (Status, Vec<Class>) {
        let is_shown = |other: &&OtherLink| self.link.as_ref() == Some(&other.device);
        let Some(other) = status.other_links.iter().find(is_shown) else {
            return (status.clone(), classes.to_vec());
        };
        let on = |class: &Class| {
            let part = class.on_links.iter().find(|part| part.link == other.device)?;
            Some(class.on(part))
        };
        (status.on(other), classes.iter().filter_map(on).collect())
    }

    /// Shows the next link.
    fn next_link(&mut self) {
        let Some((status, _)) = &self.sample else { return };
        let others = &status.other_links;
        let now = others.iter().position(|other| self.link.as_ref() == Some(&other.device));
        let next = others.get(now.map_or(0, |now| now + 1)).map(|other| other.device.clone());
        if others.is_empty() {
            self.note =
                Note::bad("this node shares one link: several `[[link]]` tables share more".to_owned());
            return;
        }
        self.link = next;
        self.history.clear();
        self.show_sample();
    }

    fn turn(&mut self) {
        self.direction = self.direction.other();
        self.history.clear();
        self.show_sample();
    }

    fn remember(&mut self, classes: &[Class]) {
        // The history of removed classes is dropped, because containers come and go for weeks.
        let here: HashSet<String> = classes.iter().map(id).collect();
        self.history.retain(|id, _| here.contains(id));
        self.colours.retain(|id, _| here.contains(id));
        for class in classes {
            let rates = self.history.entry(id(class)).or_default();
            if rates.len() == HISTORY {
                rates.pop_front();
            }
            rates.push_back(class.rate);
            self.give_colour(class);
        }
    }

    /// Assigns the first free number, so that few classes have few colours. Groups and weir's own
    /// classes get none.
    fn give_colour(&mut self, class: &Class) {
        let id = id(class);
        let colourless = matches!(
            class.kind,
            ClassKind::Group | ClassKind::Host | ClassKind::Default | ClassKind::Control
        );
        if colourless || self.colours.contains_key(&id) {
            return;
        }
        let taken: HashSet<usize> = self.colours.values().copied().collect();
        let free = (0..).find(|number| !taken.contains(number)).unwrap_or(0);
        self.colours.insert(id, free);
    }

    /// Applies a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        self.note = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        match self.mode {
            Mode::Table => match self.tab.opened(key.code) {
                Some(tab) => self.open(tab),
                None if self.tab == Tab::Classes => self.press_in_table(key.code),
                None => self.press_in_page(key.code),
            },
            Mode::Filter => self.press_in_filter(key.code),
            Mode::Explain => self.press_in_explanation(key.code),
        }
    }

    fn open(&mut self, tab: Tab) -> Action {
        if self.tab == tab {
            return Action::None;
        }
        (self.tab, self.page, self.line) = (tab, None, 0);
        Action::Show(tab)
    }

    fn press_in_page(&mut self, key: KeyCode) -> Action {
        let lines =
            self.page.as_ref().and_then(|page| page.as_ref().ok()).map_or(0, |text| text.lines().count());
        self.line = match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Action::None;
            }
            KeyCode::Up | KeyCode::Char('k') => self.line.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.line + 1,
            KeyCode::PageUp => self.line.saturating_sub(10),
            KeyCode::PageDown => self.line + 10,
            KeyCode::Home => 0,
            KeyCode::End => lines,
            _ => return Action::None,
        }
        .min(lines.saturating_sub(1));
        Action::None
    }

    fn press_in_table(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('d') => self.turn(),
            KeyCode::Char('l') => self.next_link(),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => return self.change_weight(true),
            KeyCode::Char('-' | '_') => return self.change_weight(false),
            KeyCode::Char('e') | KeyCode::Enter => {
                if let Some((id, name)) = self.selected().map(|class| (id(class), self.asked_as(class))) {
                    self.selected = Some(id);
                    self.mode = Mode::Explain;
                    self.explanation = None;
                    self.scroll = 0;
                    return Action::Explain(Some(name));
                }
            }
            KeyCode::Esc => self.filter.clear(),
            key => self.select(key),
        }
        Action::None
    }

    fn press_in_filter(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            key => self.select(key),
        }
        Action::None
    }

    fn press_in_explanation(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q' | 'e') | KeyCode::Esc | KeyCode::Enter => {
                self.mode = Mode::Table;
                self.explanation = None;
                return Action::Explain(None);
            }
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = (self.scroll + 1).min(MAX_SCROLL),
            _ => {}
        }
        Action::None
    }

    /// Moves the selection. It stops at the ends.
    fn select(&mut self, key: KeyCode) {
        let lines = self.lines();
        let Some(last) = lines.len().checked_sub(1) else { return };
        let now = lines.iter().position(|line| self.is_selected(line.class)).unwrap_or(0);
        let next = match key {
            KeyCode::Up | KeyCode::Char('k') => now.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => now + 1,
            KeyCode::PageUp => now.saturating_sub(10),
            KeyCode::PageDown => now + 10,
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => return,
        };
        self.selected = Some(id(lines[next.min(last)].class));
    }

    /// Changes the weight by one, or by a tenth above ten. The new weight is shown immediately, so that
    /// the next key builds on it.
    fn change_weight(&mut self, up: bool) -> Action {
        let Some((chosen, name)) = self.selected().map(|class| (id(class), self.asked_as(class))) else {
            return Action::None;
        };
        let Some(class) = self.classes.iter_mut().find(|class| id(class) == chosen) else {
            return Action::None;
        };
        let old = class.policy.weight.get();
        let step = (old / 10).max(1);
        let new = if up { old.saturating_add(step) } else { old.saturating_sub(step) };
        let Ok(weight) = Weight::new(new) else {
            self.note =
                Note::bad(format!("{name} has weight {old}: the least is 1, the most {}", Weight::MAX));
            return Action::None;
        };
        class.policy.weight = weight;
        self.selected = Some(chosen);
        self.note = Note::good(format!("{name}: weight {old} -> {new} ..."));
        Action::Set(self.direction.change(name, weight))
    }
}
