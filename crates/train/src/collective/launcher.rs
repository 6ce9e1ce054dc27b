//! What started this process, by what it left in the environment.

/// A program that starts many processes, and how many it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Launcher {
    /// What people call it.
    pub name: &'static str,
    /// The variable that tells.
    pub variable: &'static str,
    /// Processes that it started.
    pub processes: usize,
}

/// Variables that launchers leave with the number of processes, the most telling first: `mpirun` within a job of Slurm leaves
/// Slurm's too. A batch script of Slurm has `SLURM_NTASKS` without being one of its tasks, so that one tells nothing.
const VARIABLES: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMI_SIZE", "mpiexec"),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH's mpirun"),
    ("SLURM_STEP_NUM_TASKS", "srun"),
    ("WORLD_SIZE", "torchrun"),
    ("PALS_SIZE", "Cray's mpiexec"),
];

/// What started this process, if it was one of those; `variable` looks into the environment.
pub(super) fn launcher(variable: impl Fn(&str) -> Option<String>) -> Option<Launcher> {
    VARIABLES.into_iter().find_map(|(name, launcher)| {
        let processes = variable(name)?.trim().parse().ok().filter(|&processes| processes > 0)?;
        // A shell on a cluster may carry WORLD_SIZE for its children; a process of torchrun knows its own number too.
        let is_started = name != "WORLD_SIZE" || variable("RANK").is_some();
        is_started.then_some(Launcher { name: launcher, variable: name, processes })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among(variables: &[(&str, &str)]) -> Option<(&'static str, usize)> {
        let find = |name: &str| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.to_string())
        };
        launcher(find).map(|launcher| (launcher.variable, launcher.processes))
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(among(&[]), None);
        assert_eq!(among(&[("OMPI_COMM_WORLD_SIZE", "4")]), Some(("OMPI_COMM_WORLD_SIZE", 4)));
        assert_eq!(among(&[("PMI_SIZE", "2"), ("PMI_RANK", "1")]), Some(("PMI_SIZE", 2)));
        let both = [("SLURM_STEP_NUM_TASKS", "1"), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(among(&both), Some(("OMPI_COMM_WORLD_SIZE", 8)));
    }

    #[test]
    fn a_shell_is_not_a_launched_process() {
        // A batch script of Slurm: the tasks are started by srun later.
        assert_eq!(among(&[("SLURM_NTASKS", "16"), ("SLURM_PROCID", "0")]), None);
        assert_eq!(among(&[("WORLD_SIZE", "8")]), None);
        assert_eq!(among(&[("WORLD_SIZE", "8"), ("RANK", "3")]), Some(("WORLD_SIZE", 8)));
        assert_eq!(among(&[("PMI_SIZE", "many")]), None);
    }
}
