//! From a process that somebody started to ranks that work together.
//!
//! Two stages, since the grid of ranks is known only when the configuration is, which needs the number of ranks:
//! [`launch`] gives the [`World`], and that, later, a [`Collective`] over `data` x `fsdp` ranks.

use burn::tensor::Device;

use super::launcher::{Launcher, launcher};
use super::{Collective, CollectiveError, Mesh, Solo};

/// Where a process stands among those that were started together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// This process, from 0.
    pub rank: usize,
    /// All of them.
    pub size: usize,
    /// How many share a machine; the same on all machines.
    pub per_node: usize,
    /// This process among those of its machine, from 0: the number of its GPU.
    pub local_rank: usize,
}

impl Place {
    const SOLO: Self = Self { rank: 0, size: 1, per_node: 1, local_rank: 0 };
}

/// Why processes that were started together can't work together.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Without MPI each of them would train by itself, into one folder.
    #[error(
        "{launcher} started {processes} processes (${variable}), but this build has no MPI, so that each would train by itself: \
         rebuild with `--features mpi` (Debian: libopenmpi-dev openmpi-bin libclang-dev), or start a single process"
    )]
    NeedsMpi {
        /// What started them.
        launcher: &'static str,
        /// How that is known.
        variable: &'static str,
        /// How many.
        processes: usize,
    },
    /// The launcher doesn't belong to the MPI library of this build.
    #[error(
        "{launcher} started {processes} processes (${variable}), but MPI ({library}) knows of {found}: start them with the mpirun \
         that belongs to this library; under Slurm with `srun --mpi=pmix` (`srun --mpi=list` shows what there is); torchrun starts \
         no MPI processes"
    )]
    OtherLauncher {
        /// What started them.
        launcher: &'static str,
        /// How that is known.
        variable: &'static str,
        /// How many.
        processes: usize,
        /// How many MPI knows of.
        found: usize,
        /// Name and version of the MPI library.
        library: String,
    },
    /// Machines with different numbers of processes.
    #[error(
        "rank {rank}'s machine {host} runs {ranks} process(es), rank 0's {expected}: every machine must run as many \
         (mpirun: `--map-by ppr:N:node`; srun: `--ntasks-per-node=N`)"
    )]
    Uneven {
        /// A rank on the other machine.
        rank: usize,
        /// That machine.
        host: String,
        /// Processes there.
        ranks: usize,
        /// Processes on the first machine.
        expected: usize,
    },
    /// MPI can't be used from a thread.
    #[error("the MPI library ({library}) supports no threads: it needs MPI_THREAD_FUNNELED at least")]
    NoThreads {
        /// Name and version of the MPI library.
        library: String,
    },
    /// The thread that talks to MPI can't be started, or ended early.
    #[error("can't start the thread that talks to MPI: {0}")]
    Thread(String),
}

/// Processes that were started together, as one of them sees it. When it's dropped by a panic, all of them end.
pub struct World {
    place: Place,
    #[cfg(feature = "mpi")]
    mpi: Option<super::mpi::Mpi>,
}

/// Finds out what started this process; initialises MPI if that was a launcher. A process that was started by itself is alone, and
/// MPI isn't touched.
///
/// # Errors
/// [`LaunchError`].
pub fn launch() -> Result<World, LaunchError> {
    match launcher(|name| std::env::var(name).ok()) {
        Some(launcher) => World::launched_by(launcher),
        None => Ok(World::solo()),
    }
}

impl World {
    /// One process alone.
    pub fn solo() -> Self {
        Self {
            place: Place::SOLO,
            #[cfg(feature = "mpi")]
            mpi: None,
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn launched_by(Launcher { name, variable, processes }: Launcher) -> Result<Self, LaunchError> {
        match processes {
            1 => Ok(Self::solo()),
            _ => Err(LaunchError::NeedsMpi { launcher: name, variable, processes }),
        }
    }

    #[cfg(feature = "mpi")]
    fn launched_by(launcher: Launcher) -> Result<Self, LaunchError> {
        let mpi = super::mpi::Mpi::start(&launcher)?;
        Ok(Self { place: mpi.place(), mpi: Some(mpi) })
    }

    /// Where this process stands.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Whether this process speaks for all.
    pub fn is_first(&self) -> bool {
        self.place.rank == 0
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// [`CollectiveError`]: a rank is gone.
    pub fn meet(&self) -> Result<(), CollectiveError> {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            return mpi.meet();
        }
        Ok(())
    }

    /// What ranks do together on a grid of `data` x `fsdp` of them, whose tensors lie on `device`. All ranks call it, with the
    /// same grid.
    ///
    /// # Errors
    /// [`CollectiveError`]: the grid isn't of [`Place::size`] ranks, or a rank is gone.
    pub fn collective(
        &self,
        data: usize,
        fsdp: usize,
        device: &Device,
    ) -> Result<Box<dyn Collective>, CollectiveError> {
        let _ = device;
        let mesh = Mesh { rank: self.place.rank, data, fsdp };
        if data * fsdp != self.place.size {
            return Err(CollectiveError {
                rank: mesh.rank,
                operation: "grid of ranks".to_owned(),
                reason: format!("{data} x {fsdp} ranks are wanted, and {} were started", self.place.size),
            });
        }
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            let ranks = mpi.collective(mesh, Default::default())?;
            #[cfg(any(feature = "rocm", feature = "cuda"))]
            let ranks = match super::rccl::ranks::GpuRanks::over(ranks, device)? {
                Ok(ranks) => return Ok(Box::new(ranks)),
                Err(ranks) => ranks,
            };
            return Ok(Box::new(ranks));
        }
        Ok(Box::new(Solo))
    }

    /// [`World::collective`] over MPI, which moves tensors in `pieces`.
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "mpi")]
    #[doc(hidden)]
    pub fn collective_in_pieces(
        &self,
        data: usize,
        fsdp: usize,
        pieces: super::mpi::Pieces,
    ) -> Result<Box<dyn Collective>, CollectiveError> {
        let mesh = Mesh { rank: self.place.rank, data, fsdp };
        match &self.mpi {
            Some(mpi) => Ok(Box::new(mpi.collective(mesh, pieces)?)),
            None => Ok(Box::new(Solo)),
        }
    }

    /// Ends well: waits for all others to come here too.
    pub fn finish(self) {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            mpi.finish();
        }
    }

    /// Ends badly: says why on stderr, once and with the rank where there are several, and ends all other ranks. The process ends
    /// with `exit_code`; it does so in here, unless it's alone.
    pub fn fail(self, why: &str, exit_code: u8) {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            mpi.fail(why, exit_code);
        }
        let _ = exit_code;
        eprintln!("error: {why}");
    }
}

#[cfg(feature = "mpi")]
impl Drop for World {
    /// Others would wait for a rank that panicked.
    fn drop(&mut self) {
        if let Some(mpi) = self.mpi.as_ref().filter(|_| std::thread::panicking()) {
            mpi.fail("it panicked; the reason is above", 101);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_a_grid_of_one() {
        let world = World::solo();
        assert_eq!(world.collective(1, 1, &Device::flex()).unwrap().mesh(), Mesh::SOLO);
        let error = world.collective(2, 4, &Device::flex()).err().unwrap().to_string();
        assert!(error.contains("2 x 4 ranks are wanted, and 1 were started"), "{error}");
    }

    #[cfg(not(feature = "mpi"))]
    #[test]
    fn several_processes_without_mpi_are_refused() {
        let launcher = |processes| Launcher { name: "srun", variable: "SLURM_STEP_NUM_TASKS", processes };
        let error = World::launched_by(launcher(4)).err().unwrap().to_string();
        for part in ["srun started 4 processes ($SLURM_STEP_NUM_TASKS)", "--features mpi"] {
            assert!(error.contains(part), "{part} not in {error}");
        }
        assert_eq!(World::launched_by(launcher(1)).unwrap().place(), Place::SOLO);
    }
}
