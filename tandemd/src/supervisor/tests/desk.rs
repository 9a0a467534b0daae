//! Orders, and whether they are heard.

use super::super::{ask, desks, Desk, Wanted};
use super::*;

fn order(service: &str) -> Result<(), String> {
    ask(service, Wanted::Order(Order::Restart))
}

#[test]
fn an_order_that_is_not_heard_is_not_carried_out_later() {
    assert!(order("nobodys").unwrap_err().contains("nobody looks after"));
    desks().insert("deaf".into(), Desk::default());
    assert!(order("deaf").unwrap_err().contains("nothing is done"));
    assert!(desks()["deaf"].wishes.is_empty());
}

#[test]
fn an_order_that_is_heard_late_is_answered_all_the_same() {
    for said in [Ok(()), Err("it is parked".to_string())] {
        desks().insert("slow".into(), Desk::default());
        let asks = std::thread::spawn(|| order("slow"));
        let (_, tell) = loop {
            if let Some(wish) = desks().get_mut("slow").unwrap().wishes.pop() {
                break wish;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        std::thread::sleep(3 * super::super::PATIENCE);
        tell.send(said.clone()).unwrap();
        assert_eq!(asks.join().unwrap(), said);
    }
    // The supervisor begins anew in the middle of it.
    desks().insert("anew".into(), Desk::default());
    let asks = std::thread::spawn(|| order("anew"));
    while desks().get_mut("anew").unwrap().wishes.pop().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(asks.join().unwrap().unwrap_err().contains("has heard it"));
}
