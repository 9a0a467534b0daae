//! How soon those run that were woken, on busy machines; and that waking gains nothing but that.

use super::*;

/// What interactive guests and the driver domain have to do, in ns.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    /// An interactive guest's answer, and how long it sleeps after it.
    answer: u64,
    pause: u64,
    /// Handling an interrupt, and how far apart they are.
    irq: u64,
    irq_gap: u64,
}

const LIGHT: Traffic = Traffic { answer: 150_000, pause: 5 * MS, irq: 80_000, irq_gap: 3 * MS };
const MANY_INTERRUPTS: Traffic = Traffic { irq: 20_000, irq_gap: 200_000, ..LIGHT };
const LONG_ANSWERS: Traffic = Traffic { answer: MS, ..LIGHT };
/// Both driver domains want more than their weights are worth.
const TOO_MANY_INTERRUPTS: Traffic = Traffic { irq: 200_000, irq_gap: MS, ..LIGHT };

const CONTROL_DOMAIN: usize = 0;
const DRIVER_DOMAIN: usize = 1;
/// The first interactive guest and the busy ones beside it; the next three follow.
const GUEST: usize = 2;

/// For each pCPU an interactive guest and two busy ones with weights 1:2. The control domain has interrupts too, and
/// from time to time long work; a driver domain has only interrupts.
fn busy_machine(cpus: usize, t: Traffic) -> Sim {
    let server = (SERVER, 256, Warp::DRIVER, ANY_PCPU);
    let mut who = vec![server, server];
    for _ in 0..cpus {
        who.push((Load { busy: t.answer, away: t.pause }, 256, Warp::INTERACTIVE, ANY_PCPU));
        who.push((HOG, 256, Warp::INTERACTIVE, ANY_PCPU));
        who.push((HOG, 512, Warp::INTERACTIVE, ANY_PCPU));
    }
    let mut sim = Sim::new(cpus, &who);
    sim.feed(CONTROL_DOMAIN, t.irq_gap, t.irq);
    sim.feed(CONTROL_DOMAIN, 300 * MS, 20 * MS);
    sim.feed(DRIVER_DOMAIN, t.irq_gap, t.irq);
    sim.until(30 * SECOND);
    sim
}

fn each(traffic: &[Traffic], check: impl Fn(usize, Traffic, &Sim)) {
    for cpus in [1, 2, 4] {
        traffic.iter().for_each(|t| check(cpus, *t, &busy_machine(cpus, *t)));
    }
}

#[test]
fn interactive_guests_beside_busy_ones_answer_within_2_ms() {
    each(&[LIGHT, MANY_INTERRUPTS, LONG_ANSWERS, TOO_MANY_INTERRUPTS], |cpus, t, sim| {
        for guest in (0..cpus).map(|i| GUEST + 3 * i) {
            let w = &sim.waits[guest];
            let (run, answer) = (percentile(&w.to_run, 990), percentile(&w.to_answer, 990));
            assert!(run < MS && answer < 2 * MS, "{cpus} pCPUs, {t:?}: runs after {run}, answers after {answer}");
            near("what it asks for", sim.time(guest), sim.now / (t.answer + t.pause) * t.answer, 6);
        }
    });
}

#[test]
fn driver_domains_beside_busy_guests_run_within_50_us_of_their_interrupts() {
    each(&[LIGHT, MANY_INTERRUPTS, LONG_ANSWERS], |cpus, t, sim| {
        for domain in [DRIVER_DOMAIN, CONTROL_DOMAIN] {
            let run = percentile(&sim.waits[domain].to_run, 990);
            assert!(run <= LATE_NS, "{cpus} pCPUs, {t:?}: domain {domain} after {run}");
        }
    });
}

#[test]
fn busy_guests_keep_their_shares_beside_those_that_wake() {
    each(&[LIGHT, MANY_INTERRUPTS, LONG_ANSWERS, TOO_MANY_INTERRUPTS], |cpus, _, sim| {
        let light: u64 = (0..cpus).map(|i| sim.time(GUEST + 3 * i + 1)).sum();
        let heavy: u64 = (0..cpus).map(|i| sim.time(GUEST + 3 * i + 2)).sum();
        near("twice the weight", heavy, 2 * light, 3);
    });
}

#[test]
fn whoever_sleeps_and_wakes_all_the_time_gets_no_more_than_its_share() {
    for cpus in [1, 2, 4] {
        for (busy, away) in [(20_000, 1_000), (90_000, 10_000), (400_000, 1_000), (2_400_000, 1_000), (5 * MS, 5 * MS)]
        {
            let abuser = (Load { busy, away }, 256, Warp::INTERACTIVE, ANY_PCPU);
            let honest = (HOG, 256, Warp::INTERACTIVE, ANY_PCPU);
            let mut sim = Sim::new(cpus, &[abuser, honest, honest].repeat(cpus));
            sim.until(20 * SECOND);
            for i in 0..3 * cpus {
                let (ran, share) = (sim.time(i), sim.now / 3);
                let gains = i % 3 == 0 && ran > share + share / 50;
                // Nor does it lose anything, unless it never runs for as long as a turn lasts at least.
                let loses = (i % 3 != 0 || busy >= 90_000) && ran < share - share / 50;
                assert!(!gains && !loses, "{cpus} pCPUs, {busy} of {}: vCPU {i} ran {ran} of {share}", busy + away);
            }
        }
    }
}

#[test]
fn whoever_wakes_all_the_time_does_not_keep_a_pcpu_switching() {
    let abuser = (Load { busy: 1_000, away: 1_000 }, 256, Warp::INTERACTIVE, ANY_PCPU);
    let mut sim = Sim::new(1, &[abuser, hog(256), hog(256)]);
    sim.until(10 * SECOND);
    assert!(sim.switches < 10 * 50_000, "{}", sim.switches);
}
