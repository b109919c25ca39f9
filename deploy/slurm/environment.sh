# What a job needs before `python` is one with dkgp: edit to your site. Sourced by the batch scripts beside it.
# module load python/3.12
# source "$HOME/dkgp/bin/activate"
