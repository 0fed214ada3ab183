use proptest::prelude::*;

use super::*;

const MB: f64 = 1e6;

/// Ten servers of 100 MB/s with four slots, and ten nodes with eight.
fn config() -> Config {
    Config {
        fixed: None,
        nodes: 10,
        node_slots: 8,
        servers: 10,
        server_slots: 4,
        cpu_times: 1.0,
        io_share: 1.0,
        disk_bytes_per_s: 100.0 * MB,
        link_bytes_per_s: 50.0 * MB,
    }
}

/// 80 tasks that read 100 MB each.
fn work(task_cpu_s: f64) -> Work {
    Work {
        tasks: 80,
        task_cpu_ns: (task_cpu_s * 1e9) as u64,
        read_bytes: 8_000_000_000,
        busiest_bytes: 800_000_000,
        local: 1.0,
        write_bytes: 0,
        writes_local: true,
        result_bytes: 0,
    }
}

fn ready(ship: &mut Ship, stage: StageId, work: Work) -> (Side, String) {
    let mut out = Vec::new();
    ship.handle(Nanos(0), Event::Ready { stage, work, busy: 0.0 }, &mut out);
    let [Action::Run { stage: of, side, why }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(*of, stage);
    (*side, why.clone())
}

/// Each server has 800 MB: 8 s of its disk, and 16 s of its link, at which 80 tasks queue up.
#[test]
fn scans_go_to_the_data_and_computation_to_the_cores() {
    let (side, why) = ready(&mut Ship::new(config()), 1, work(0.1));
    assert_eq!(
        (side, why.as_str()),
        (Side::Storage, "compute nodes: 17.8 s (slots of the nodes); storage servers: 8.0 s (disks)")
    );
    let (side, why) = ready(&mut Ship::new(config()), 1, work(20.0));
    assert_eq!(side, Side::Compute);
    assert_eq!(
        why,
        "compute nodes: 20.0 s (slots of the nodes); storage servers: 40.0 s (slots of the servers)"
    );
    let fixed = Config { fixed: Some(Side::Storage), ..config() };
    let (side, why) = ready(&mut Ship::new(fixed), 1, work(20.0));
    assert!(side == Side::Storage && why.ends_with("(fixed)"), "{why}");
}

/// The slots of the servers are taken by one stage, so the next one goes elsewhere, until half of
/// the first has ended.
#[test]
fn a_stage_goes_around_others() {
    let mut ship = Ship::new(config());
    assert_eq!(ready(&mut ship, 1, work(5.0)).0, Side::Storage);
    assert_eq!(ready(&mut ship.clone(), 2, work(5.0)).0, Side::Compute);
    for _ in 0..60 {
        ship.handle(Nanos(1), Event::TaskEnded { stage: 1 }, &mut Vec::new());
    }
    assert_eq!(ship.running[0].left, 20);
    assert_eq!(ready(&mut ship.clone(), 2, work(5.0)).0, Side::Storage);
    for _ in 0..20 {
        ship.handle(Nanos(1), Event::TaskEnded { stage: 1 }, &mut Vec::new());
    }
    assert!(ship.running.is_empty());
}

fn any_config() -> impl Strategy<Value = Config> {
    let counts = (1u32..50, 1u32..20, 1u32..50, 1u32..20);
    (counts, 0.2f64..5.0, 0.05f64..=1.0, 1e6f64..1e10, 1e6f64..1e10).prop_map(
        |((nodes, node_slots, servers, server_slots), cpu_times, io_share, disk, link)| Config {
            fixed: None,
            nodes,
            node_slots,
            servers,
            server_slots,
            cpu_times,
            io_share,
            disk_bytes_per_s: disk,
            link_bytes_per_s: link,
        },
    )
}

fn any_work() -> impl Strategy<Value = Work> {
    let bytes = (0u64..1 << 40, 0.02f64..=1.0, 0u64..1 << 38, 0u64..1 << 38);
    (1u32..5000, 0u64..100_000_000_000, bytes, 0.0f64..=1.0, any::<bool>()).prop_map(
        |(tasks, task_cpu_ns, (read_bytes, part, write_bytes, result_bytes), local, writes_local)| Work {
            tasks,
            task_cpu_ns,
            read_bytes,
            busiest_bytes: (read_bytes as f64 * part) as u64,
            local,
            write_bytes,
            writes_local,
            result_bytes,
        },
    )
}

proptest! {
    /// The side that gets a stage is never the one where it would end later, whatever runs.
    #[test]
    fn no_stage_goes_where_it_would_end_later(
        config in any_config(),
        works in prop::collection::vec((any_work(), 0.0f64..1.0), 1..6),
    ) {
        let mut ship = Ship::new(config);
        for (stage, (work, busy)) in (0..).zip(works) {
            let before = ship.clone();
            let mut out = Vec::new();
            ship.handle(Nanos(stage), Event::Ready { stage, work, busy }, &mut out);
            let [Action::Run { side, .. }] = &out[..] else { panic!("{out:?}") };
            let other = if *side == Side::Storage { Side::Compute } else { Side::Storage };
            prop_assert!(before.estimate(*side, &work, busy).0 <= before.estimate(other, &work, busy).0);
        }
    }

    /// A larger result, slower cores and a smaller share never make a stage go to the servers, and
    /// the opposites never keep it from them.
    #[test]
    fn what_shipping_costs_only_keeps_stages_from_it(
        config in any_config(),
        work in any_work(),
        (result, times, share) in (0u64..1 << 38, 1.0f64..4.0, 0.1f64..1.0),
    ) {
        let of = |config: &Config, work: Work| Ship::new(config.clone()).decide(&work, 0.0).0;
        let dearer = [
            (config.clone(), Work { result_bytes: work.result_bytes + result, ..work }),
            (Config { cpu_times: config.cpu_times * times, ..config.clone() }, work),
            (Config { io_share: config.io_share * share, ..config.clone() }, work),
        ];
        for (config_of_it, work_of_it) in dearer {
            let (before, after) = (of(&config, work), of(&config_of_it, work_of_it));
            prop_assert!(before == Side::Storage || after == Side::Compute);
        }
    }
}
