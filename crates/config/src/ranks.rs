//! The ranks of a run and how they share the model: copies, and shards of each.
//!
//! MaxText's rule: the degrees of one network multiply to the ranks that it connects, `ici_*` to those of a node and `dcn_*` to
//! the nodes; one of each may be -1 and takes what the others leave.

use crate::error::{ConfigErrors, Problem};
use crate::keys::Config;
use crate::keys::choices::OptType;

/// Far above any machine, and low enough for products with batch sizes to fit in 64 bits.
const MOST: usize = 1 << 24;

/// Processes that train together, one per device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// All of them.
    pub count: usize,
    /// Those of one node; every node has as many.
    pub per_node: usize,
}

impl Ranks {
    /// One process alone.
    pub const ONE: Self = Self { count: 1, per_node: 1 };

    /// Nodes that they run on.
    pub fn nodes(self) -> usize {
        self.count / self.per_node.max(1)
    }
}

/// How ranks share the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degrees {
    /// Copies of the model.
    pub data: usize,
    /// Shards of each copy.
    pub fsdp: usize,
}

/// The ranks that a configuration is resolved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    ranks: Ranks,
    degrees: Degrees,
}

impl Layout {
    /// One process, whatever the keys say.
    pub(crate) const ONE: Self = Self { ranks: Ranks::ONE, degrees: Degrees { data: 1, fsdp: 1 } };
}

/// A key of parallelism and its value.
type Degree = (&'static str, i64);

/// The two degrees of a network, and the ranks or nodes that it connects.
struct Network {
    data: Degree,
    fsdp: Degree,
    size: usize,
    /// What `size` counts.
    unit: &'static str,
}

impl Config {
    /// This configuration for a run of `ranks`: -1 of the parallelism keys is resolved, and batch sizes are those of all ranks.
    ///
    /// # Errors
    /// The degrees don't multiply to the ranks, or something in the configuration can't be shared by so many.
    pub fn for_ranks(self, ranks: Ranks) -> Result<Self, ConfigErrors> {
        let Ranks { count, per_node } = ranks;
        if count > MOST {
            let message = format!("{count} ranks are too many; at most {MOST} are possible");
            return Err(self.problem_at("ici_fsdp_parallelism", message).into());
        }
        if count == 0 || per_node == 0 || !count.is_multiple_of(per_node) {
            let message =
                format!("{count} ranks can't be {per_node} on each node: start equally many on every node");
            return Err(self.problem_at("ici_fsdp_parallelism", message).into());
        }
        let [ici, dcn] = self.networks(ranks);
        let mut problems = Vec::new();
        let mut resolve = |network: &Network| {
            network.resolve(ranks).unwrap_or_else(|(key, message)| {
                problems.push(self.problem_at(key, message));
                Degrees { data: 1, fsdp: 1 }
            })
        };
        let (within, over) = (resolve(&ici), resolve(&dcn));
        let degrees = Degrees { data: within.data * over.data, fsdp: within.fsdp * over.fsdp };
        if problems.is_empty() {
            self.check_sharing(ranks, degrees, &mut problems);
        }
        if problems.is_empty() {
            Ok(Self { layout: Layout { ranks, degrees }, ..self })
        } else {
            Err(ConfigErrors::new(problems))
        }
    }

    /// This configuration for the ranks that its own degrees multiply to, -1 counting as 1; a note says so where there are
    /// several. For plans, which need no ranks to be there.
    ///
    /// # Errors
    /// As [`Config::for_ranks`].
    pub fn for_ranks_of_its_keys(self) -> Result<Self, ConfigErrors> {
        let product = |[a, b]: [i64; 2]| a.max(1).saturating_mul(b.max(1)) as usize;
        let per_node = product([self.ici_data_parallelism, self.ici_fsdp_parallelism]);
        let nodes = product([self.dcn_data_parallelism, self.dcn_fsdp_parallelism]);
        let ranks = Ranks { count: per_node.saturating_mul(nodes), per_node };
        let mut config = self.for_ranks(ranks)?;
        if ranks.count > 1 {
            let key = if per_node > 1 { config.largest_ici() } else { "dcn_data_parallelism" };
            let count = ranks.count;
            let message = format!(
                "planned for {}, as the parallelism keys ask; `--ranks N` plans for others, and a run needs `mpirun -n {count} mt-train ...`",
                counted(count, per_node)
            );
            let note = config.problem_at(key, message);
            config.resolved.notes.push(note);
        }
        Ok(config)
    }

    /// Copies and shards of the model: 1 of 1 unless [`Config::for_ranks`] has said otherwise.
    pub fn mesh(&self) -> Degrees {
        self.layout.degrees
    }

    /// Ranks that the batch is spread over.
    pub fn num_ranks(&self) -> usize {
        self.layout.ranks.count
    }

    /// The ranks that this configuration is resolved for.
    pub fn ranks(&self) -> Ranks {
        self.layout.ranks
    }

    fn networks(&self, ranks: Ranks) -> [Network; 2] {
        [
            Network {
                data: ("ici_data_parallelism", self.ici_data_parallelism),
                fsdp: ("ici_fsdp_parallelism", self.ici_fsdp_parallelism),
                size: ranks.per_node,
                unit: "rank per node",
            },
            Network {
                data: ("dcn_data_parallelism", self.dcn_data_parallelism),
                fsdp: ("dcn_fsdp_parallelism", self.dcn_fsdp_parallelism),
                size: ranks.nodes(),
                unit: "node",
            },
        ]
    }

    fn largest_ici(&self) -> &'static str {
        self.networks(Ranks::ONE)[0].by_size().0.0
    }

    /// What several ranks can't do together.
    fn check_sharing(&self, ranks: Ranks, degrees: Degrees, problems: &mut Vec<Problem>) {
        if degrees.fsdp > 1 && self.opt_type == OptType::Muon {
            let message = format!(
                "`opt_type: muon` needs whole matrices, and fsdp cuts them into {}; set `ici_data_parallelism: -1`, `ici_fsdp_parallelism: 1` and `dcn_fsdp_parallelism: 1`, or another optimizer",
                degrees.fsdp
            );
            problems.push(self.problem_at("opt_type", message));
        }
        for (key, rows) in [
            ("per_device_batch_size", self.per_device_batch_size),
            ("eval_per_device_batch_size", self.eval_per_device_batch_size),
        ] {
            if ranks.count > 1 && rows.fract() != 0.0 {
                let (count, all) = (ranks.count, rows * ranks.count as f64);
                let message = format!(
                    "`{key}: {rows}` on {count} ranks makes {all} rows, of which not every rank can have as many; give a whole number"
                );
                problems.push(self.problem_at(key, message));
            }
        }
    }

    fn problem_at(&self, key: &str, message: impl Into<String>) -> Problem {
        Problem::new(self.resolved.place(key).clone(), message)
    }

    /// Networks of which two keys are -1, as the key to name and what is wrong.
    pub(crate) fn unclear_degrees(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.networks(Ranks::ONE).into_iter().filter_map(|Network { data, fsdp, .. }| {
            let given = |key: &str| self.resolved.place(key).is_given();
            let (named, other) = if given(data.0) { (data.0, fsdp.0) } else { (fsdp.0, data.0) };
            let message = format!(
                "`{other}` is -1 as well, and only one of the two can take the rest: set `{other}: 1`"
            );
            (data.1 == -1 && fsdp.1 == -1).then_some((named, message))
        })
    }
}

impl Network {
    /// The larger degree and the other one.
    fn by_size(&self) -> (Degree, Degree) {
        if self.data.1 > self.fsdp.1 { (self.data, self.fsdp) } else { (self.fsdp, self.data) }
    }

    /// The degrees with -1 resolved, or the key to change and why.
    fn resolve(&self, ranks: Ranks) -> Result<Degrees, (&'static str, String)> {
        let (size, unit) = (self.size, plural(self.size, self.unit));
        let fill = |open: Degree, fixed: Degree| match size as i64 {
            size if size % fixed.1 == 0 => Ok((size / fixed.1) as usize),
            _ => Err((
                fixed.0,
                format!(
                    "`{}: {}` doesn't divide the {size} {unit} that `{}: -1` has to fill",
                    fixed.0, fixed.1, open.0
                ),
            )),
        };
        let degrees = match (self.data.1, self.fsdp.1) {
            (-1, fsdp) => Degrees { data: fill(self.data, self.fsdp)?, fsdp: fsdp as usize },
            (data, -1) => Degrees { data: data as usize, fsdp: fill(self.fsdp, self.data)? },
            (data, fsdp) => Degrees { data: data as usize, fsdp: fsdp as usize },
        };
        let product = degrees.data.saturating_mul(degrees.fsdp);
        if product == size { Ok(degrees) } else { Err(self.mismatch(product, ranks)) }
    }

    /// The degrees make `product` where the network has another size.
    fn mismatch(&self, product: usize, ranks: Ranks) -> (&'static str, String) {
        let (larger, other) = self.by_size();
        let needed = product.saturating_mul(if self.unit == "node" { ranks.per_node } else { ranks.nodes() });
        let first =
            if (self.size as i64) % other.1 != 0 { format!("`{}: 1` and ", other.0) } else { String::new() };
        let message = format!(
            "`{}: {}` times `{}: {}` is {product}, but this run has {} {} ({} in all): start it as `mpirun -n {needed} mt-train ...`, or set {first}`{}: -1`, which takes what is there",
            self.data.0,
            self.data.1,
            self.fsdp.0,
            self.fsdp.1,
            self.size,
            plural(self.size, self.unit),
            plural_count(ranks.count, "rank"),
            larger.0
        );
        (larger.0, message)
    }
}

/// `16 ranks, 8 per node`
pub(crate) fn counted(count: usize, per_node: usize) -> String {
    format!("{}, {per_node} per node", plural_count(count, "rank"))
}

fn plural_count(count: usize, unit: &str) -> String {
    format!("{count} {}", plural(count, unit))
}

/// `node` or `nodes`; of several words the first one counts.
fn plural(count: usize, unit: &str) -> String {
    match (count, unit.split_once(' ')) {
        (1, _) => unit.to_owned(),
        (_, Some((first, rest))) => format!("{first}s {rest}"),
        (_, None) => format!("{unit}s"),
    }
}
