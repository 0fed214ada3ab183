-- Slurm's hooks for jobs with #FB directives. They only call forebay-job, which does the work.
--
-- Slurm loads this file from the directory of slurm.conf (BurstBufferType=burst_buffer/lua). It
-- calls slurm_bb_job_process within slurmctld, and the others in a process of their own.

local program = "@PREFIX@/share/forebay/slurm/forebay-job"

-- Runs a step of forebay-job. What it prints when it fails becomes the reason of the job.
local function step(...)
	local command = program
	for _, word in ipairs({...}) do
		command = command .. " '" .. word:gsub("'", "'\\''") .. "'"
	end
	-- Lua 5.1 has no exit status of a pipe.
	local pipe = io.popen(command .. " </dev/null; echo \" $?\"")
	local printed = pipe:read("*all")
	pipe:close()
	local text, status = printed:match("^(.-)%s*(%d+)%s*$")
	if status == "0" then
		return slurm.SUCCESS
	end
	return slurm.ERROR, text or "forebay-job was killed"
end

function slurm_bb_job_process(job_script)
	return step("check", job_script)
end

function slurm_bb_data_in(job_id, job_script)
	return step("stage-in", job_id, job_script)
end

-- Nodes write the data out before Slurm gets them back (epilog), and free what is the job's alone.
local function nothing()
	return slurm.SUCCESS
end

slurm_bb_setup = nothing
slurm_bb_real_size = nothing
slurm_bb_paths = nothing
slurm_bb_pre_run = nothing
slurm_bb_post_run = nothing
slurm_bb_data_out = nothing
slurm_bb_job_teardown = nothing

-- Slurm asks every half minute. There are no pools; it is the time to look after its stage-ins.
function slurm_bb_pools()
	os.execute(program .. " recover </dev/null >/dev/null 2>&1 &")
	return slurm.SUCCESS
end

function slurm_bb_get_status()
	return slurm.SUCCESS, ""
end
