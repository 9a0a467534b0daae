//! The examples of `docs/sandbox.md` as tests, and images that break the rules about the file.

use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use twin_abi::image::{flags, Address, Function, ImageBuilder, Import, Label, Mode, LABEL_CHARGE};
use twin_abi::kind::{Frame, Kind, State, CALLEE_SAVED};

use crate::{list, verify, Policy, Rule, Verifier};

const NAMES: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

pub fn policy(mode: Mode) -> Policy {
    Policy { mode, mask_bits: if mode == Mode::Mirror { 46 } else { 0 }, counted: true, bmi: true }
}

fn empty(mode: Mode) -> ImageBuilder {
    let policy = policy(mode);
    ImageBuilder {
        mirror: mode == Mode::Mirror,
        mask_bits: policy.mask_bits,
        flags: flags::ALL,
        imports: vec![Import::default(); 2],
        ..Default::default()
    }
}

fn number(name: &str) -> usize {
    NAMES.iter().position(|n| *n == name).unwrap_or_else(|| panic!("register {name}"))
}

fn kind(name: &str) -> Kind {
    (0..16).filter_map(Kind::from_code).find(|k| format!("{k:?}") == name).unwrap_or_else(|| panic!("kind {name}"))
}

/// One example of the page.
#[derive(Clone, Debug)]
pub struct Example {
    pub group: String,
    pub title: String,
    pub modes: Vec<Mode>,
    /// The rule and offset of the refusal, if it is to be refused.
    pub refused: Option<(String, u32)>,
    pub lines: Vec<String>,
}

/// Reads the examples of the page.
pub fn examples() -> Vec<Example> {
    let page = include_str!("../../docs/sandbox.md");
    let mut found: Vec<Example> = Vec::new();
    for line in page.lines().skip_while(|l| *l != "<!-- examples -->") {
        if line.starts_with("    ") {
            found.last_mut().expect("a head first").lines.push(line.trim().into());
        } else if line.contains(" accept ") || line.contains(" refuse@") {
            let mut words = line.split(' ');
            let group: String = words.next().expect("rule").into();
            let verdict = words.next().expect("verdict");
            let modes = match words.next() {
                Some("mirror") => vec![Mode::Mirror],
                Some("stlb") => vec![Mode::Stlb],
                _ => vec![Mode::Mirror, Mode::Stlb],
            };
            let refused = verdict.strip_prefix("refuse@").map(|rest| {
                let (at, rule) = rest.split_once('=').unwrap_or((rest, &group));
                (String::from(rule), u32::from_str_radix(at, 16).expect("offset"))
            });
            found.push(Example { group, title: line.into(), modes, refused, lines: Vec::new() });
        }
    }
    found
}

/// The image of an example.
pub fn assemble(example: &Example, mode: Mode) -> Vec<u8> {
    let mut b = empty(mode);
    let (mut start, mut args) = (0, 0);
    let mut label = None;
    for line in example.lines.iter().chain([&String::from(".function")]) {
        let at = u32::try_from(b.code.len()).expect("small");
        let words: Vec<&str> = line.split_whitespace().collect();
        let setting = |name: &str| words.iter().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
        match words[0] {
            ".label" => {
                let mut state = State::default();
                for (reg, name) in words.iter().filter_map(|w| w.split_once('=')) {
                    match reg {
                        "depth" => state.frame.depth = name.parse().expect("depth"),
                        "saved" => {
                            let (reg, slot) = name.split_once(':').expect("register:slot");
                            let n = CALLEE_SAVED.iter().position(|r| usize::from(*r) == number(reg)).expect("saved");
                            state.frame.saved[n] = slot.parse().expect("slot");
                        }
                        _ => state.set_kind(u8::try_from(number(reg)).expect("small"), kind(name)),
                    }
                }
                let charge = if words.contains(&"charge") { LABEL_CHARGE } else { 0 };
                label = Some((state, charge));
            }
            ".function" => {
                if at > start {
                    b.functions.push(Function { start, end: at, stack_args: args, ..Default::default() });
                }
                (start, args) = (at, setting("args").map_or(0, |n| n.parse().expect("args")));
            }
            _ => {
                if at == start && label.is_none() {
                    label = Some((State::default(), 0));
                }
                if let Some((state, charge)) = label.take() {
                    let state = b.state(state) | charge;
                    b.labels.push(Label { offset: at, state });
                }
                let hex = line.split('|').next().expect("bytes");
                b.code.extend(hex.split_whitespace().map(|h| u8::from_str_radix(h, 16).expect("hex")));
            }
        }
    }
    b.build()
}

#[test]
fn the_examples_of_the_page_are_judged_as_it_says() {
    let mut seen: BTreeMap<(String, bool), usize> = BTreeMap::new();
    for example in examples() {
        for mode in &example.modes {
            let image = assemble(&example, *mode);
            let verdict = verify(&image, &policy(*mode)).map(|_| ()).map_err(|r| (format!("{:?}", r.rule), r.offset));
            match &example.refused {
                None => assert_eq!(verdict, Ok(()), "{} {mode:?}", example.title),
                Some(at) => assert_eq!(verdict, Err(at.clone()), "{} {mode:?}", example.title),
            }
        }
        *seen.entry((example.group, example.refused.is_some())).or_default() += 1;
    }
    assert!(seen.values().sum::<usize>() > 100, "{seen:?}");
    let rules = ["D1", "D2", "D3", "D4", "M1", "M2", "M3", "M4", "M5", "S1", "S2", "S3", "S4", "S5", "C1", "C2"];
    for rule in rules.into_iter().chain(["C3", "C4", "C5", "C6", "C7", "B1", "B2"]) {
        assert!(seen.contains_key(&(rule.into(), true)), "no refused example for {rule}");
        assert!(rule == "B2" || seen.contains_key(&(rule.into(), false)), "no accepted example for {rule}");
    }
}

/// The page shows what the bytes mean.
#[test]
fn bytes_and_text_of_the_examples_agree() {
    for example in examples() {
        for line in &example.lines {
            let Some((hex, text)) = line.split_once('|') else { continue };
            let bytes: Vec<u8> = hex.split_whitespace().map(|h| u8::from_str_radix(h, 16).expect("hex")).collect();
            let text = text.trim();
            if text.starts_with(".byte") {
                continue;
            }
            let mut decoder = iced_x86::Decoder::new(64, &bytes, 0);
            let instruction = decoder.decode();
            assert_eq!(instruction.len(), bytes.len(), "{line}");
            let mnemonic = format!("{:?}", instruction.mnemonic()).to_lowercase();
            let shown = text.split(' ').find(|w| !["lock", "rep"].contains(w)).expect("word");
            let same = shown == mnemonic || (shown == "movabs" && mnemonic == "mov");
            assert!(same, "{line}: {mnemonic}");
        }
    }
}

/// A mirror image of one function, `ret`, with one import and one address.
fn small() -> ImageBuilder {
    let mut b = empty(Mode::Mirror);
    b.code = vec![0xc3];
    b.functions.push(Function { start: 0, end: 1, ..Default::default() });
    let state = b.state(State::default());
    b.labels.push(Label { offset: 0, state });
    b.addresses.push(Address { domain: 0xffff_ffff_c000_0000, function: 0 });
    b
}

fn rule_of(b: ImageBuilder) -> Option<Rule> {
    verify(&b.build(), &policy(Mode::Mirror)).err().map(|refusal| refusal.rule)
}

#[test]
fn the_page_has_every_rule_in_the_order_of_their_numbers() {
    let page = include_str!("../../docs/sandbox.md");
    let names: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("** ")).collect();
    let is_rule = |name: &&str| name.len() == 2 && "FDMSCB".contains(&name[..1]);
    let there: Vec<_> = names.into_iter().map(|(name, _)| name).filter(is_rule).collect();
    assert_eq!(there, Rule::ALL.iter().map(|rule| format!("{rule:?}")).collect::<Vec<_>>());
    for rule in Rule::ALL {
        assert_eq!(Rule::of_number(*rule as u32), Some(*rule));
    }
    assert_eq!(Rule::of_number(u32::MAX), None);
}

#[test]
fn a_small_image_is_accepted() {
    assert_eq!(rule_of(small()), None);
}

#[test]
fn bytes_that_are_no_image_are_refused() {
    assert_eq!(verify(b"no image", &policy(Mode::Stlb)).err().map(|r| r.rule), Some(Rule::F0));
}

#[test]
fn the_header_must_be_what_the_loader_asked_for() {
    let check = |change: fn(&mut ImageBuilder)| {
        let mut b = small();
        change(&mut b);
        rule_of(b)
    };
    assert_eq!(check(|b| b.mask_bits = 47), Some(Rule::F1));
    assert_eq!(check(|b| b.mirror = false), Some(Rule::F1));
    assert_eq!(check(|b| b.flags = flags::BMI), Some(Rule::F1));
    assert_eq!(check(|b| b.imports = vec![Import::default(); 1025]), Some(Rule::F1));
    let slow = Policy { bmi: false, ..policy(Mode::Mirror) };
    assert_eq!(verify(&small().build(), &slow).err().map(|r| r.rule), Some(Rule::F1));
}

/// Sixteen megabytes of table for a function of one byte would be a loader's burden for nothing.
#[test]
fn no_table_is_larger_than_the_code_has_use_for() {
    let check = |change: fn(&mut ImageBuilder)| {
        let mut b = small();
        change(&mut b);
        verify(&b.build(), &policy(Mode::Mirror)).err().map(|refusal| (refusal.rule, refusal.what))
    };
    let refused = |what| Some((Rule::F1, what));
    let addresses = |n: u64| (0..n).map(|n| Address { domain: n, function: 0 }).collect();
    assert_eq!(check(|b| b.addresses.push(b.addresses[0])), refused("more addresses than functions"));
    let mut b = small();
    b.addresses = addresses(8 << 20);
    assert_eq!(rule_of(b), Some(Rule::F1), "eight million addresses");
    assert_eq!(check(|b| b.functions = vec![b.functions[0]; 65]), refused("too many functions"));
    assert_eq!(check(|b| b.labels = vec![b.labels[0]; 65]), refused("too many labels"));
    assert_eq!(check(|b| b.states = vec![b.states[0]; 2]), refused("more states than labels"));
    assert_eq!(check(|b| b.origins = vec![Default::default(); 66]), refused("too many origins"));
    assert_eq!(check(|b| b.origins = vec![Default::default(); 65]), None);
    assert_eq!(check(|b| b.strings = "x".repeat((1 << 20) + 1)), refused("too many strings"));
}

#[test]
fn names_are_printable_and_inside_the_strings() {
    let check = |strings: &str, name: u32, name_len: u32| {
        let mut b = small();
        b.strings = strings.into();
        b.functions[0] = Function { name, name_len, ..b.functions[0] };
        let function = rule_of(b.clone());
        b.functions[0].name_len = 0;
        b.functions[0].name = 0;
        b.imports[1] = Import { name, name_len, domain: 0 };
        assert_eq!(rule_of(b), function, "imports as functions");
        function
    };
    assert_eq!(check("abcdefghijklmnop", 6, 10), None);
    assert_eq!(check("abcdefghijklmnop", 7, 10), Some(Rule::F6));
    assert_eq!(check("abcdefghijklmnop", u32::MAX, 10), Some(Rule::F6));
    assert_eq!(check(&"x".repeat(300), 0, 255), None);
    assert_eq!(check(&"x".repeat(300), 0, 256), Some(Rule::F6));
    for wrong in ["a line\nof its own", "\u{1b}[2J", "\u{e9}", "two words"] {
        assert_eq!(check(wrong, 0, 1), Some(Rule::F6), "{wrong:?}");
    }
    assert_eq!(check(&format!("{}\n", "x".repeat(600)), 0, 1), Some(Rule::F6), "far behind");
}

/// A verification in steps comes to what one in one go comes to, and has no way past a refusal.
#[test]
fn a_verification_may_pause() {
    for example in examples() {
        for mode in &example.modes {
            let image = assemble(&example, *mode);
            let whole = verify(&image, &policy(*mode)).map(|v| v.instructions());
            let mut verifier = match Verifier::new(&image, &policy(*mode)) {
                Ok(verifier) => verifier,
                Err(refusal) => {
                    assert_eq!(whole, Err(refusal));
                    continue;
                }
            };
            let mut steps = 0;
            let in_steps = loop {
                assert!(verifier.advance(0).map_or(true, |v| v.is_none()), "no step, no verdict");
                steps += 1;
                match verifier.advance(1) {
                    Ok(None) => {}
                    Ok(Some(verified)) => break Ok(verified.instructions()),
                    Err(refusal) => break Err(refusal),
                }
            };
            assert_eq!(in_steps, whole, "{}", example.title);
            assert_eq!(verifier.advance(1000).map(|v| v.map(|v| v.instructions())), whole.map(Some), "said again");
            assert!(steps > 5, "{steps}");
        }
    }
}

/// The steps are as many as there are records, instructions, and stretches of padding and names.
#[test]
fn steps_grow_with_the_image_and_no_faster() {
    let steps = |b: ImageBuilder| {
        let image = b.build();
        let mut verifier = Verifier::new(&image, &policy(Mode::Mirror)).expect("a header");
        (1..).find(|_| verifier.advance(1).expect("accepted").is_some()).expect("ends")
    };
    let few = steps(small());
    let mut b = small();
    b.code.extend(vec![0xcc; 256 * 100]);
    assert_eq!(steps(b), few + 99);
    let mut b = small();
    b.code = vec![0x90; 1000];
    b.code.push(0xc3);
    b.functions[0].end = 1001;
    assert_eq!(steps(b), few + 1000);
    let mut b = small();
    b.strings = "x".repeat(256 * 100);
    assert_eq!(steps(b), few + 99);
}

#[test]
fn functions_must_cover_the_code_in_order() {
    let check = |change: fn(&mut ImageBuilder)| {
        let mut b = small();
        change(&mut b);
        rule_of(b)
    };
    assert_eq!(check(|b| b.functions[0].end = 2), Some(Rule::F2));
    assert_eq!(check(|b| b.functions[0].end = 0), Some(Rule::F2));
    assert_eq!(check(|b| b.functions.push(b.functions[0])), Some(Rule::F2));
    assert_eq!(check(|b| b.code.push(0x90)), Some(Rule::F2));
    assert_eq!(check(|b| b.code.push(0xcc)), None);
    assert_eq!(check(|b| b.code.extend([&[0xcc; 1000][..], &[0x90]].concat())), Some(Rule::F2), "far behind");
    assert_eq!(check(|b| b.functions[0].stack_args = 17), Some(Rule::F2));
    assert_eq!(check(|b| b.indirect_args = 17), Some(Rule::F2));
}

#[test]
fn labels_and_states_must_be_possible() {
    let check = |state: State, offset: u32| {
        let mut b = small();
        let state = b.state(state);
        b.labels.push(Label { offset, state });
        rule_of(b)
    };
    let frame = |depth, saved| State { regs: 0, frame: Frame { depth, saved } };
    assert_eq!(check(State::default(), 0), Some(Rule::F3), "twice");
    assert_eq!(check(State::default(), 1), Some(Rule::F3), "outside");
    assert_eq!(check(State { regs: 0xf, ..State::default() }, 1), Some(Rule::F3), "undefined kind");
    assert_eq!(check(State { regs: Kind::Window as u64, ..State::default() }, 1), Some(Rule::F3), "other mode");
    assert_eq!(check(State { regs: 0x2_0000, ..State::default() }, 1), Some(Rule::F3), "rsp");
    assert_eq!(check(frame(511, [0; 6]), 1), Some(Rule::F3), "deep");
    assert_eq!(check(frame(1, [2, 0, 0, 0, 0, 0]), 1), Some(Rule::F3), "saved below the frame");
    assert_eq!(check(frame(2, [1, 1, 0, 0, 0, 0]), 1), Some(Rule::F3), "saved twice");
    let mut b = small();
    b.labels[0].state = 7;
    assert_eq!(rule_of(b), Some(Rule::F3), "no such state");
    let mut b = small();
    b.labels.clear();
    b.states.clear();
    assert_eq!(rule_of(b), Some(Rule::F4), "function without label");
    let mut b = small();
    b.states[0].frame.depth = 1;
    assert_eq!(rule_of(b), Some(Rule::F4), "function that starts with a frame");
}

#[test]
fn a_label_inside_the_last_instruction_is_refused() {
    let mut b = small();
    // mov eax, 0x0b0f90; ud2, with a label in either.
    b.code = vec![0xb8, 0x90, 0x0f, 0x0b, 0x00, 0x0f, 0x0b];
    b.functions[0].end = 7;
    assert_eq!(rule_of(b.clone()), None);
    for offset in [2, 6] {
        let mut b = b.clone();
        b.labels.push(Label { offset, state: 0 });
        assert_eq!(rule_of(b), Some(Rule::F3), "{offset}");
    }
}

#[test]
fn the_address_table_names_functions_that_need_nothing() {
    let check = |change: fn(&mut ImageBuilder)| {
        let mut b = small();
        change(&mut b);
        rule_of(b)
    };
    let twice = |b: &mut ImageBuilder| {
        b.code.push(0xc3);
        b.functions.push(Function { start: 1, end: 2, ..Default::default() });
        b.labels.push(Label { offset: 1, state: 0 });
        b.addresses.push(b.addresses[0]);
    };
    assert_eq!(check(twice), Some(Rule::F5));
    assert_eq!(check(|b| b.addresses[0].function = 1), Some(Rule::F5));
    assert_eq!(check(|b| b.states[0].regs = Kind::Masked as u64), Some(Rule::F5));
    assert_eq!(check(|b| b.functions[0].stack_args = 1), Some(Rule::F5));
}

#[test]
fn all_refusals_can_be_listed() {
    let mut b = empty(Mode::Mirror);
    for at in 0..3 {
        b.code.extend([0xfa, 0xc3, 0xcc]);
        b.functions.push(Function { start: at * 3, end: at * 3 + 3, ..Default::default() });
        let state = b.state(State::default());
        b.labels.push(Label { offset: at * 3, state });
    }
    let mut told = Vec::new();
    let count = list(&b.build(), &policy(Mode::Mirror), &mut |refusal| {
        told.push((refusal.rule, refusal.offset));
        true
    });
    assert_eq!((count, told), (3, vec![(Rule::D2, 0), (Rule::D2, 3), (Rule::D2, 6)]));
}

#[test]
fn a_refusal_says_where_what_and_why() {
    let example = examples().into_iter().find(|e| e.title.contains("address not masked")).expect("there");
    let refusal = verify(&assemble(&example, Mode::Mirror), &policy(Mode::Mirror)).expect_err("refused");
    assert_eq!(format!("{refusal}"), "M1 at 0x0: address not masked (0x0) [48 8b 07]");
}

/// The fuzzers' oracles, for a second each.
mod oracles {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fuzzing::{self, Choices, Guesses, Outcome, Tally};

    fn for_a_second(mut check: impl FnMut(&[u8])) -> u64 {
        let (end, mut seed) = (Instant::now() + Duration::from_secs(1), 0u64);
        while Instant::now() < end {
            seed += 1;
            check(&seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        seed
    }

    #[test]
    fn accepted_images_stay_inside() {
        let mut sum = Tally::default();
        for_a_second(|bytes| {
            let tally = fuzzing::run(bytes, 16);
            sum.images += tally.images;
            sum.accepted += tally.accepted;
        });
        assert!(sum.accepted > 100, "{sum:?}");
        std::println!("{sum:?}");
    }

    #[test]
    fn corrupted_images_are_refused_or_confined() {
        let mut sum = fuzzing::Sum::default();
        let mut first = 0;
        for_a_second(|bytes| {
            for mode in [Mode::Mirror, Mode::Stlb] {
                let mut image = fuzzing::generate(&mut Choices::new(bytes), mode);
                assert!(verify(&image, &policy(mode)).is_ok(), "generated images are accepted");
                let before = image.clone();
                fuzzing::corrupt(&mut image, &policy(mode), 1, first..first + 50, &mut sum).expect("confined");
                assert_eq!(image, before);
                first += 50;
            }
        });
        assert!(sum.code.refused > 100 && sum.code.confined > 100 && sum.file.tried > 0, "{sum:?}");
        assert!(sum.cross_checked > 0, "one in 2048: {sum:?}");
        std::println!("{sum:?}");
    }

    #[test]
    fn three_decoders_agree() {
        let (mut compared, mut wrong) = (0, BTreeMap::new());
        for_a_second(|bytes| {
            let mut choices = Choices::new(bytes);
            for _ in 0..100 {
                let bytes: Vec<u8> = (0..15).map(|_| choices.byte()).collect();
                if let Err(what) = fuzzing::matches_reference(&bytes, 0) {
                    wrong.insert(String::from("own"), what);
                }
                match fuzzing::decoders_agree(&bytes) {
                    Ok(both) => compared += u64::from(both),
                    Err(what) => drop(wrong.insert(String::from(what.rsplit(' ').nth(1).unwrap_or("")), what)),
                }
            }
        });
        assert!(wrong.is_empty() && compared > 1000, "{compared} {wrong:#?}");
        std::println!("{compared}");
    }

    /// The verifier's own decoder accepts nothing that the reference takes for something else, over all forms of a part
    /// of the prefixes. What it does not accept although the reference does is listed.
    #[test]
    fn the_own_decoder_agrees_over_all_forms() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let part = usize::try_from(now.subsec_micros()).unwrap_or(0);
        let (mut same, mut neither, mut left, mut wrong) = (0u64, 0u64, BTreeMap::new(), BTreeMap::new());
        let stride = std::env::var("ALL_FORMS").map_or(97, |_| 1);
        fuzzing::for_all_forms(part % stride, stride, &mut |bytes| match fuzzing::matches_reference(bytes, 0) {
            Ok(fuzzing::Match::Same) => same += 1,
            Ok(fuzzing::Match::Neither) => neither += 1,
            Ok(fuzzing::Match::OnlyReference(code)) => *left.entry(format!("{code:?}")).or_insert(0u64) += 1,
            Err(what) => drop(wrong.insert(what.chars().take(12).collect::<String>(), what)),
        });
        std::println!("{same} same, {neither} neither; only the reference: {left:?}");
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(same > 10_000, "{same}");
        // Far, absolute and other forms that no compiler uses here, and prefixes that do nothing.
        let known = [
            "Bswap_r16",
            "Call_m16",
            "Jmp_m16",
            "Mov_moffs",
            "Mov_AL",
            "Mov_AX",
            "Mov_EAX",
            "Mov_RAX",
            "Pop_rm64",
            "Retnq_imm16",
            "Lfence_E",
            "Mfence_F",
            "Sfence_F",
            "Clc",
            "Cmc",
            "Stc",
            "Sahf",
        ];
        let is_known = |code: &&String| known.iter().any(|k| code.starts_with(k)) || code.ends_with("r1");
        let unknown: Vec<&String> = left.keys().filter(|code| !is_known(code)).collect();
        assert!(unknown.is_empty(), "refused without need: {unknown:?}");
    }

    /// The emulator has to find what the verifier refuses for: each refused example, taken for accepted, or one like
    /// it.
    #[test]
    fn the_emulator_sees_escapes() {
        let mut seen = 0;
        for example in examples().iter().filter(|e| e.refused.is_some()) {
            for mode in &example.modes {
                let image = assemble(example, *mode);
                let image = twin_abi::Image::parse(&image).expect("parses");
                seen += usize::from(escapes(&image, Guesses::Right));
            }
        }
        assert!(seen > 60, "{seen}");
        std::println!("{seen}");
    }

    fn escapes(image: &twin_abi::Image<'_>, guesses: Guesses) -> bool {
        let escaped = |seed| matches!(fuzzing::emulate_unasked(image, guesses, seed, 3000), Outcome::Escaped(_));
        (0..400).any(escaped)
    }

    /// What is refused only for what a processor does that guesses a branch wrong.
    #[test]
    fn the_emulator_sees_what_a_wrong_guess_reaches() {
        let mut seen = 0;
        for example in examples().iter().filter(|e| e.title.contains("that only a branch bounds")) {
            let image = assemble(example, Mode::Mirror);
            let image = twin_abi::Image::parse(&image).expect("parses");
            assert!(!escapes(&image, Guesses::Right), "{}", example.title);
            assert!(escapes(&image, Guesses::Wrong), "{}", example.title);
            seen += 1;
        }
        assert_eq!(seen, 2);
    }
}
