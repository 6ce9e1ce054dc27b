use super::*;
use serde_json::Value;

#[allow(dead_code, reason = "shared with the tests of the model, which need more of it")]
#[path = "../../model/tests/support/npz.rs"]
mod npz;

/// Learning rates for 13 configurations, steps + 5 values each; tests/reference/lr_schedules.py writes them.
const GOLDEN: &str = include_str!("../golden/lr_schedules.json");

fn options(config: &Value) -> ScheduleOptions {
    let float = |key: &str, default: f64| config.get(key).map_or(default, |v| v.as_f64().unwrap());
    let text = |key: &str, default: &'static str| config.get(key).map_or(default, |v| v.as_str().unwrap());
    let (steps, schedule) = (float("steps", -1.0), float("learning_rate_schedule_steps", -1.0));
    let or = |a: f64, b: f64| if a < 0.0 { b as u64 } else { a as u64 };
    ScheduleOptions {
        steps: or(steps, schedule),
        learning_rate_schedule_steps: or(schedule, steps),
        learning_rate: float("learning_rate", 3e-5),
        learning_rate_final_fraction: float("learning_rate_final_fraction", 0.1),
        warmup_steps_fraction: float("warmup_steps_fraction", 0.1),
        decay: match text("lr_schedule_type", "cosine") {
            "cosine" => Decay::Cosine,
            _ => Decay::Wsd {
                decay_steps_fraction: float("wsd_decay_steps_fraction", 0.1),
                style: match text("wsd_decay_style", "linear") {
                    "linear" => WsdDecayStyle::Linear,
                    _ => WsdDecayStyle::Cosine,
                },
            },
        },
    }
}

#[test]
fn every_step_of_every_golden_schedule_is_equal() {
    let table: Value = serde_json::from_str(GOLDEN).unwrap();
    let cases = table.as_object().unwrap();
    assert_eq!(cases.len(), 13);
    for (name, case) in cases {
        let schedule = Schedule::new(&options(&case["config"]));
        for (step, rate) in case["rates"].as_array().unwrap().iter().enumerate() {
            let expected = rate.as_f64().unwrap() as f32;
            assert_eq!(schedule.at(step as u64), expected, "{name} at step {step}");
        }
    }
}

#[test]
fn maxtext_vectors_are_equal() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/golden");
    let Ok(configs) = std::fs::read_to_string(format!("{folder}/lr_schedules.json")) else {
        eprintln!("skipped: no vectors in {folder}");
        return;
    };
    let configs: Value = serde_json::from_str(&configs).unwrap();
    let vectors = npz::Npz::open(format!("{folder}/lr_schedules.npz").as_ref());
    for (name, config) in configs.as_object().unwrap() {
        let rates = &vectors.get(name).values;
        let schedule = Schedule::new(&options(config));
        let ours: Vec<f32> = (0..rates.len() as u64).map(|step| schedule.at(step)).collect();
        assert_eq!(&ours, rates, "{name}");
    }
}

#[test]
fn odd_options_give_a_schedule() {
    let base = ScheduleOptions {
        steps: 10,
        learning_rate_schedule_steps: 10,
        learning_rate: 1.0,
        learning_rate_final_fraction: 0.1,
        warmup_steps_fraction: 0.8,
        decay: Decay::Wsd { decay_steps_fraction: 0.5, style: WsdDecayStyle::Linear },
    };
    // The decay reaches into the warm-up: it starts after it, at the peak.
    assert_eq!(Schedule::new(&base).at(8), 1.0);
    // A decay of one step has no transition: MaxText stays at the peak.
    let one = ScheduleOptions {
        decay: Decay::Wsd { decay_steps_fraction: 0.1, style: WsdDecayStyle::Linear },
        ..base
    };
    assert_eq!(Schedule::new(&one).at(9), 1.0);
    // No schedule at all.
    let none = ScheduleOptions { learning_rate_schedule_steps: 0, steps: 0, ..base };
    assert_eq!(Schedule::new(&none).at(3), 0.0);
}
