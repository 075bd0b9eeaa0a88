use std::collections::VecDeque;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use ratatui_core::{backend::TestBackend, terminal::Terminal};
use weir_api::{Activity, ClassKind, PolicyChange};
use weir_units::{BitRate, Bytes};

use super::{
    direction::Direction,
    draw,
    ink::Ink,
    panel::wrap,
    state::{Action, HISTORY, Mode, Sort, State, Update, id},
    tab::Tab,
    tabs,
};
use weir_fake_agent as fake;

/// A state after one sample of the fake agent.
fn state() -> State {
    let mut state = State::new("/run/weir/weir.sock".to_owned(), Sort::Rate, Direction::Up);
    state.apply(sample());
    state
}

fn sample() -> Update {
    Update::Sample(Box::new(fake::status()), fake::classes())
}

/// The same state with a group above `web`.
fn grouped() -> State {
    let mut classes = fake::classes();
    let mut group = fake::class("tenant-a", BitRate::mbit(40), BitRate::mbit(40));
    group.kind = ClassKind::Group;
    group.source = "config".to_owned();
    classes.push(group);
    let mut state = state();
    state.apply(Update::Sample(Box::new(fake::status()), classes));
    state
}

fn press(state: &mut State, key: KeyCode) -> Action {
    state.press(KeyEvent::new(key, KeyModifiers::NONE))
}

fn kinds(state: &mut State, text: &str) -> Vec<Action> {
    text.chars().map(|letter| press(state, KeyCode::Char(letter))).collect()
}

/// The lines of a frame on a terminal of this size.
fn screen(state: &State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let ink = Ink { colour: true };
    terminal.draw(|frame| draw::frame(state, ink, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer().clone();
    (0..height)
        .map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned())
        .collect()
}

fn names(state: &State) -> Vec<&str> {
    state.lines().iter().map(|line| line.class.name.as_str()).collect()
}

#[test]
fn a_frame_shows_link_classes_and_the_selected_ones_last_minute() {
    let lines = screen(&state(), 120, 22);
    let expected = " weir   eth0 100mbit  htb · water-filling · tcx                                            3 of 4 active · up 3h 12m 12s
██████████████████████████████████████████████████████████████████████████████████████████████████████████████████░░░░░░
sending 94.7mbit of 100mbit, 94.7 %                                                            promised 20mbit of 95mbit
! camera is not enforced: veth7 is not there
 1 classes   2 agreements   3 images   4 congestion control
  NAME      WEIGHT       MIN       MAX   ALLOWED   SENDING  0                100mbit   BACKLOG    WAIT    DROPS  STATE
▶ video          3         -         -    55mbit  54.1mbit  ████████████▉░··········     64KiB   9.5ms       12  active
  web            2    20mbit    50mbit    40mbit  39.8mbit  ████[████▌··]···········        0B       0        0  active
  host           1         -         -     5mbit   800kbit  ▏░······················        0B       0        0  active
  camera         1         -         -     5mbit         0  ░░······················        0B       0        0  idle!";
    assert_eq!(lines[..10].join("\n"), expected);
    let all = lines.join("\n");
    assert!(all.contains("╭ video over the last 60 s ─"), "{all}");
    assert!(all.contains("weight 3 (set by hand), no min, no max"), "{all}");
    assert!(all.contains("held back for 81.5s, 12 drops"), "{all}");
    assert!(lines[21].starts_with(
        "q quit   s sort: rate   / filter   ↑↓ select   +- weight   e explain   d down   p pause"
    ));
    assert!(lines[21].ends_with("█ sending ░ allowed [ min ] max"));
}

/// A state of a node that shares its download, of which `web` receives 16 Mbit/s.
fn both_directions() -> State {
    let (mut status, mut classes) = (fake::status(), fake::classes());
    status.download = Some(fake::download_status());
    for class in classes.iter_mut().filter(|class| class.name != "camera") {
        class.down = Some(fake::download(BitRate::mbit(if class.name == "web" { 16 } else { 0 })));
    }
    let mut state = state();
    state.apply(Update::Sample(Box::new(status), classes));
    state
}

#[test]
fn letter_d_shows_what_arrives_and_changes_its_weights() {
    let mut state = both_directions();
    assert_eq!(press(&mut state, KeyCode::Char('d')), Action::None);
    let lines = screen(&state, 120, 22);
    assert!(lines[0].starts_with(" weir   eth0 50mbit  download"), "{}", lines[0]);
    assert!(lines[2].starts_with("receiving 16mbit of 50mbit, 32.0 %"), "{}", lines[2]);
    assert!(lines[2].ends_with("promised 0bit of 47.5mbit"), "{}", lines[2]);
    let all = lines.join("\n");
    assert!(all.contains("RECEIVING") && !all.contains("SENDING"), "{all}");
    let web = lines.iter().find(|line| line.contains("▶ web")).unwrap();
    assert!(web.contains("20mbit") && web.contains("16mbit"), "{web}");
    assert!(!names(&state).contains(&"camera"), "it has no part of the download");
    assert!(all.contains("3 drops") && !all.contains("held back"), "{all}");
    let Action::Set(change) = press(&mut state, KeyCode::Char('+')) else { panic!("it changes the weight") };
    assert_eq!((change.name.as_str(), change.weight), ("web", None));
    assert!(change.down.unwrap().weight.unwrap().is_some());
    press(&mut state, KeyCode::Char('d'));
    assert!(screen(&state, 120, 22)[2].starts_with("sending 94.7mbit of 100mbit"));
}

#[test]
fn letter_l_shows_the_next_of_several_links() {
    let mut state = state();
    press(&mut state, KeyCode::Char('l'));
    assert!(screen(&state, 120, 22)[21].contains("shares one link"), "{:?}", screen(&state, 120, 22));
    let status = weir_api::Status { other_links: vec![fake::other_link()], ..fake::status() };
    let mut classes = fake::classes();
    classes[1].on_links = vec![fake::on_link(&classes[1])];
    state.apply(Update::Sample(Box::new(status), classes));
    press(&mut state, KeyCode::Char('l'));
    let lines = screen(&state, 120, 22);
    assert!(lines[0].starts_with(" weir   wwan0 9mbit"), "{}", lines[0]);
    assert!(lines[2].starts_with("sending 4mbit of 9mbit, 44.4 %"), "{}", lines[2]);
    assert_eq!(names(&state), ["video"], "the others have no part of it");
    press(&mut state, KeyCode::Char('d'));
    assert!(screen(&state, 120, 22)[2].starts_with("receiving"), "the link has a download");
    press(&mut state, KeyCode::Char('d'));
    press(&mut state, KeyCode::Char('l'));
    assert!(screen(&state, 120, 22)[0].starts_with(" weir   eth0 100mbit"));
}

#[test]
fn node_without_a_shared_download_says_how_to_share_it() {
    let mut state = state();
    press(&mut state, KeyCode::Char('d'));
    let lines = screen(&state, 120, 22);
    assert!(lines[2].starts_with("sending"), "{}", lines[2]);
    assert!(lines[21].contains("does not share its download: `[link] download"), "{}", lines[21]);
}

#[test]
fn numbers_stand_in_line_and_bars_end_together() {
    let lines = screen(&state(), 120, 22);
    let ends = |text: &str| {
        let at = lines
            .iter()
            .find_map(|line| line.find(text).map(|byte| line[..byte + text.len()].chars().count()));
        at.unwrap_or_else(|| panic!("no {text}"))
    };
    assert_eq!(ends("54.1mbit"), ends("SENDING"));
    assert_eq!(ends("39.8mbit"), ends("SENDING"));
    assert_eq!(ends(" 64KiB"), ends("BACKLOG"));
    assert_eq!(ends(" 9.5ms"), ends("WAIT"));
    assert_eq!(ends("  12"), ends("DROPS"));
}

#[test]
fn without_an_agent_the_screen_says_so_and_keeps_what_it_knew() {
    let mut empty = State::new("/tmp/x.sock".to_owned(), Sort::Rate, Direction::Up);
    assert!(screen(&empty, 80, 10)[0].contains("asking the agent at /tmp/x.sock"));
    empty.apply(Update::Silence("cannot reach the agent".to_owned()));
    assert!(screen(&empty, 80, 10)[1].contains("agent unreachable, retrying (1): cannot reach the agent"));
    let mut known = state();
    known.apply(Update::Silence("gone".to_owned()));
    known.apply(Update::Silence("gone".to_owned()));
    let all = screen(&known, 120, 22).join("\n");
    assert!(all.contains("agent unreachable, retrying (2): gone"), "{all}");
    assert!(all.contains("54.1mbit"), "{all}");
    let mut status = fake::status();
    status.pid += 1;
    known.apply(Update::Sample(Box::new(status), fake::classes()));
    let all = screen(&known, 120, 22).join("\n");
    assert!(!all.contains("unreachable") && all.contains("the agent has been restarted"), "{all}");
}

#[test]
fn members_stand_below_their_group_in_every_order() {
    let mut state = grouped();
    assert_eq!(names(&state), ["video", "tenant-a", "web", "host", "camera"]);
    assert!(screen(&state, 120, 22).iter().any(|line| line.starts_with("  └ web ")));
    let orders: Vec<Vec<String>> = (0..6)
        .map(|_| {
            press(&mut state, KeyCode::Char('s'));
            names(&state).into_iter().map(str::to_owned).collect()
        })
        .collect();
    for order in &orders {
        let group = order.iter().position(|name| name == "tenant-a").unwrap();
        assert_eq!(order[group + 1], "web", "{order:?}");
    }
    assert_eq!(state.sort, Sort::Rate, "s goes round");
    assert_eq!(orders[4], ["camera", "host", "tenant-a", "web", "video"], "by name");
    assert_eq!(orders[2][0], "video", "by drops");
}

#[test]
fn two_groups_of_one_name_do_not_show_their_members_twice() {
    let mut classes = grouped().classes;
    let mut twin = classes[4].clone();
    twin.source = "docker".to_owned();
    classes.push(twin);
    let mut state = state();
    state.apply(Update::Sample(Box::new(fake::status()), classes));
    assert_eq!(names(&state).iter().filter(|name| **name == "web").count(), 1);
    assert_eq!(names(&state).len(), 6);
}

#[test]
fn a_groups_traffic_is_not_counted_twice_in_the_links_bar() {
    let full = |state: &State| screen(state, 100, 22)[1].chars().filter(|&c| c == '█').count();
    assert_eq!(full(&grouped()), full(&state()));
    assert_eq!(full(&state()), 95);
}

#[test]
fn the_filter_narrows_as_it_is_typed_and_esc_drops_it() {
    let mut state = grouped();
    press(&mut state, KeyCode::Char('/'));
    kinds(&mut state, "CAMq");
    assert_eq!((&state.mode, names(&state).len()), (&Mode::Filter, 0));
    assert!(screen(&state, 100, 22).join("\n").contains("no class matches the filter"));
    press(&mut state, KeyCode::Backspace);
    assert_eq!(names(&state), ["camera"]);
    press(&mut state, KeyCode::Enter);
    assert_eq!((&state.mode, state.filter.as_str()), (&Mode::Table, "CAM"));
    assert!(screen(&state, 100, 22)[21].contains("/ filter: CAM"));
    press(&mut state, KeyCode::Esc);
    assert_eq!(names(&state).len(), 5);
    press(&mut state, KeyCode::Char('/'));
    kinds(&mut state, "tenant");
    assert_eq!(names(&state), ["tenant-a", "web"], "a group's name finds its members");
    press(&mut state, KeyCode::Esc);
    assert_eq!(names(&state).len(), 5);
}

#[test]
fn arrows_select_and_the_choice_stays_when_the_order_changes() {
    let mut state = state();
    let selected = |state: &State| state.selected().map(|class| class.name.clone()).unwrap();
    assert_eq!(selected(&state), "video");
    press(&mut state, KeyCode::Up);
    assert_eq!(selected(&state), "video");
    press(&mut state, KeyCode::Down);
    assert_eq!(selected(&state), "web");
    let mut classes = fake::classes();
    classes[0].rate = BitRate::ZERO;
    state.apply(Update::Sample(Box::new(fake::status()), classes));
    assert_eq!(selected(&state), "web");
    press(&mut state, KeyCode::End);
    press(&mut state, KeyCode::Down);
    assert_eq!(selected(&state), "web", "idle by now, and so last by name");
    press(&mut state, KeyCode::Home);
    assert_eq!(selected(&state), "video");
    state.apply(Update::Sample(Box::new(fake::status()), vec![fake::classes()[2].clone()]));
    assert_eq!(selected(&state), "camera", "the chosen one has gone");
}

#[test]
fn plus_and_minus_change_the_selected_weight_step_by_step() {
    let mut state = state();
    let set = |name: &str, weight| {
        Action::Set(PolicyChange {
            name: name.to_owned(),
            weight: Some(Some(fake::weight(weight))),
            ..Default::default()
        })
    };
    assert_eq!(press(&mut state, KeyCode::Char('+')), set("video", 4));
    assert_eq!(press(&mut state, KeyCode::Char('+')), set("video", 5), "without waiting for the agent");
    assert_eq!(press(&mut state, KeyCode::Char('-')), set("video", 4));
    press(&mut state, KeyCode::End);
    assert_eq!(press(&mut state, KeyCode::Char('-')), Action::None, "the weight is 1 already");
    assert!(state.note.as_ref().unwrap().bad);
    state.apply(Update::Changed(Err("no right to".to_owned())));
    assert!(screen(&state, 100, 22)[21].starts_with("no right to"));
    state.apply(sample());
    assert_eq!(state.classes[1].policy.weight, fake::weight(3), "what the agent says counts");
}

#[test]
fn two_classes_of_one_name_are_asked_for_by_source() {
    let mut classes = fake::classes();
    classes[2].name = "web".to_owned();
    let mut state = state();
    state.apply(Update::Sample(Box::new(fake::status()), classes));
    press(&mut state, KeyCode::End);
    match press(&mut state, KeyCode::Char('+')) {
        Action::Set(change) => assert_eq!(change.name, "config:web"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_note_goes_with_the_next_key_or_after_a_while() {
    let mut state = state();
    press(&mut state, KeyCode::Char('+'));
    assert!(state.note.is_some());
    press(&mut state, KeyCode::Down);
    assert!(state.note.is_none());
    press(&mut state, KeyCode::Char('+'));
    for _ in 0..4 {
        state.apply(sample());
    }
    assert!(state.note.is_none());
}

#[test]
fn the_explanation_opens_scrolls_and_closes() {
    let mut state = state();
    assert_eq!(press(&mut state, KeyCode::Char('e')), Action::Explain(Some("video".to_owned())));
    assert!(screen(&state, 100, 24).join("\n").contains("asking ..."));
    state.apply(Update::Explained(Ok(Box::new(fake::explanation(fake::classes()[1].clone())))));
    let all = screen(&state, 100, 24).join("\n");
    assert!(all.contains("2. by weight 2 of 6 the share is 33.3mbit"), "{all}");
    assert!(all.contains("tenant-a       2     40mbit  weight"), "{all}");
    let short = screen(&state, 60, 10).join("\n");
    assert!(!short.contains("demand"), "{short}");
    for _ in 0..50 {
        press(&mut state, KeyCode::Down);
    }
    let end = screen(&state, 60, 10).join("\n");
    assert!(end.contains("demand"), "{end}");
    assert_eq!(press(&mut state, KeyCode::Esc), Action::Explain(None));
    assert_eq!(state.mode, Mode::Table);
    state.apply(Update::Explained(Err("late".to_owned())));
    assert!(state.explanation.is_none());
}

#[test]
fn a_pause_keeps_the_figures_until_it_ends() {
    let mut state = state();
    press(&mut state, KeyCode::Char('p'));
    let mut classes = fake::classes();
    classes[1].rate = BitRate::mbit(1);
    state.apply(Update::Sample(Box::new(fake::status()), classes.clone()));
    let lines = screen(&state, 100, 22);
    assert!(lines[0].contains("PAUSED") && lines.join("\n").contains("54.1mbit"));
    press(&mut state, KeyCode::Char('p'));
    state.apply(Update::Sample(Box::new(fake::status()), classes));
    assert!(!screen(&state, 100, 22).join("\n").contains("54.1mbit"));
}

#[test]
fn q_and_ctrl_c_leave_but_q_is_a_letter_in_the_filter() {
    let mut state = state();
    assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
    press(&mut state, KeyCode::Char('/'));
    assert_eq!(press(&mut state, KeyCode::Char('q')), Action::None);
    assert_eq!(state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Action::Quit);
}

#[test]
fn the_history_is_a_minute_long_and_forgets_who_has_gone() {
    let mut state = state();
    for _ in 0..2 * HISTORY {
        state.apply(sample());
    }
    assert!(state.history.values().all(|rates| rates.len() == HISTORY));
    state.apply(Update::Sample(Box::new(fake::status()), fake::classes()[..1].to_vec()));
    assert_eq!(state.history.keys().collect::<Vec<_>>(), ["docker:web"]);
}

#[test]
fn a_class_keeps_its_colour_and_a_newcomer_takes_a_free_one() {
    let mut state = state();
    let before = state.colours.clone();
    assert_eq!(before.len(), 3, "the host needs none");
    let mut classes = fake::classes();
    classes[1] = fake::class("another", BitRate::ZERO, BitRate::ZERO);
    state.apply(Update::Sample(Box::new(fake::status()), classes));
    assert_eq!(state.colours["docker:web"], before["docker:web"]);
    assert_eq!(state.colours["config:camera"], before["config:camera"]);
    assert_eq!(state.colours["docker:another"], before["docker:video"]);
}

#[test]
fn a_row_out_of_sight_comes_into_sight_when_selected() {
    let classes: Vec<_> =
        (0..100).map(|n| fake::class(&format!("c{n:02}"), BitRate::mbit(1), BitRate(n))).collect();
    let mut state = State::new(String::new(), Sort::Name, Direction::Up);
    state.apply(Update::Sample(Box::new(fake::status()), classes));
    for _ in 0..60 {
        press(&mut state, KeyCode::Down);
    }
    assert!(screen(&state, 80, 24).iter().any(|line| line.starts_with("▶ c60")));
}

#[test]
fn narrow_screens_leave_columns_out_and_keep_name_and_rate() {
    for (width, has, lacks) in [
        (130, "MIN", "?"),
        (100, "DROPS", "MIN"),
        (90, "WAIT", "DROPS"),
        (80, "BACKLOG", "WAIT"),
        (60, "ALLOWED", "STATE"),
        (30, "SENDING", "WEIGHT"),
    ] {
        let lines = screen(&state(), width, 22);
        let heading = lines.iter().find(|line| line.contains("NAME")).unwrap();
        assert!(heading.contains(has) && !heading.contains(lacks), "{width}: {heading}");
        assert!(lines.iter().any(|line| line.contains("54.1mbit")), "{width}");
    }
}

#[test]
fn one_frame_as_text_has_every_class() {
    let text = draw::as_text(&grouped(), 100);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 11, "{text}");
    assert!(lines[0].starts_with(" weir   eth0 100mbit"), "{text}");
    assert!(lines[10].contains("camera") && lines[10].ends_with("idle!"), "{text}");
    assert!(lines.iter().all(|line| !line.contains('\u{1b}') && !line.ends_with(' ')), "{text}");
    assert!(
        draw::as_text(&State::new("x".to_owned(), Sort::Rate, Direction::Up), 100)
            .contains("asking the agent")
    );
}

#[test]
fn long_lines_break_between_words_below_their_first() {
    assert_eq!(wrap("  1. one two three", 12), ["  1. one two", "     three"]);
    assert_eq!(wrap("  a bb ccc", 6), ["  a bb", "  ccc"]);
    assert_eq!(wrap("unbreakable", 4), ["unbreakable"]);
    assert_eq!(wrap("NAME     RATE", 40), ["NAME     RATE"]);
    assert_eq!(wrap("", 10), [""]);
}

prop_compose! {
    /// Classes with any values that the types allow.
    fn any_class()(
        name in "\\PC{0,20}",
        group in prop::option::of("[ab]"),
        numbers in any::<[u64; 6]>(),
        is_group in any::<bool>(),
        absent in any::<bool>(),
        enforced in any::<bool>(),
    ) -> weir_api::Class {
        let mut class = fake::class(&name, BitRate(numbers[0]), BitRate(numbers[1]));
        class.group = group;
        if is_group {
            class.kind = ClassKind::Group;
            class.name = "a".to_owned();
        }
        class.policy.min = Some(BitRate(numbers[2]));
        class.policy.max = Some(BitRate(numbers[3]));
        class.backlog = Bytes(numbers[4]);
        class.backpressured_ms = numbers[5];
        class.enforced = enforced;
        if absent {
            class.activity = Activity::Absent;
        }
        class
    }
}

proptest! {
    #[test]
    fn no_agent_and_no_terminal_size_breaks_a_frame(
        classes in prop::collection::vec(any_class(), 0..12),
        capacity in any::<u64>(),
        size in (0..200u16, 0..60u16),
        keys in prop::collection::vec(prop::sample::select(vec!['+', '-', 'e', 's', 'p', '/', 'a', 'j', 'k', 'q']), 0..12),
        history in prop::collection::vec(any::<u64>(), 0..60),
    ) {
        let mut state = State::new("/s".to_owned(), Sort::Rate, Direction::Up);
        let mut status = fake::status();
        status.capacity = BitRate(capacity);
        state.apply(Update::Sample(Box::new(status), classes.clone()));
        for class in &classes {
            state.history.insert(id(class), history.iter().map(|&rate| BitRate(rate)).collect::<VecDeque<_>>());
        }
        for key in keys {
            if let Action::Explain(Some(_)) = press(&mut state, KeyCode::Char(key)) {
                let class = state.selected().unwrap().clone();
                state.apply(Update::Explained(Ok(Box::new(fake::explanation(class)))));
            }
        }
        let lines = screen(&state, size.0, size.1);
        prop_assert_eq!(lines.len(), usize::from(size.1));
        prop_assert!(state.lines().len() <= classes.len());
    }
}

#[test]
fn signal_ends_the_screen() {
    let (tell, inbox) = std::sync::mpsc::channel();
    super::end_on_signal(tell).unwrap();
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGHUP).unwrap();
    let input = inbox.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    assert!(matches!(input, super::Input::End));
}

#[test]
fn keys_open_tabs_and_scroll_and_late_text_of_another_tab_is_dropped() {
    let mut state = state();
    assert_eq!(press(&mut state, KeyCode::Char('1')), Action::None, "it is open");
    assert_eq!(press(&mut state, KeyCode::Tab), Action::Show(Tab::Agreements));
    assert!(screen(&state, 100, 20).join("\n").contains("asking the agent ..."));
    assert_eq!(press(&mut state, KeyCode::BackTab), Action::Show(Tab::Classes));
    assert_eq!(press(&mut state, KeyCode::BackTab), Action::Show(Tab::Congestion));
    assert_eq!(press(&mut state, KeyCode::Char('3')), Action::Show(Tab::Images));
    state.apply(Update::Page(Tab::Congestion, Ok("late".to_owned())));
    assert_eq!(state.page, None);
    let text: String = (0..40).map(|n| format!("line {n}.\n")).collect();
    state.apply(Update::Page(Tab::Images, Ok(text)));
    let first = screen(&state, 100, 20).join("\n");
    assert!(first.contains("line 0.") && !first.contains("line 30.") && !first.contains("WEIGHT"), "{first}");
    for (key, from) in [(KeyCode::Down, 1), (KeyCode::PageDown, 11), (KeyCode::Up, 10), (KeyCode::Home, 0)] {
        assert_eq!(press(&mut state, key), Action::None);
        assert_eq!(state.line, from);
    }
    // The end is never scrolled out of sight.
    for _ in 0..9 {
        press(&mut state, KeyCode::PageDown);
    }
    let last = screen(&state, 100, 20).join("\n");
    assert!(last.contains("line 39.") && last.contains("line 30."), "{last}");
    // Keys of the table do nothing here, and a failure is told.
    assert_eq!(kinds(&mut state, "+s/e"), [const { Action::None }; 4]);
    assert_eq!(state.mode, Mode::Table);
    state.apply(Update::Page(Tab::Images, Err("no cache runs".to_owned())));
    assert!(screen(&state, 100, 20).join("\n").contains("no cache runs"));
    // A pause keeps the text.
    press(&mut state, KeyCode::Char('p'));
    state.apply(Update::Page(Tab::Images, Ok("newer".to_owned())));
    assert_eq!(state.page, Some(Err("no cache runs".to_owned())));
    assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
}

#[test]
fn tabs_show_what_their_verbs_print() {
    let agent = fake::FakeAgent::start();
    for (tab, heading) in [(Tab::Agreements, "PARTY"), (Tab::Congestion, "ALGORITHM")] {
        let text = tabs::page(tab, &agent.client()).unwrap();
        assert!(text.contains(heading), "{tab:?}: {text}");
    }
    let refused = tabs::page(Tab::Images, &agent.client()).unwrap_err();
    assert!(refused.contains("this agent keeps no images"), "{refused}");
}
