package checkpoint

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// process names one process of one boot of one kernel, so that a restart on the
// same host sees at once that the holder of a lease is dead. Where /proc does
// not tell, it is empty and the lease is waited out.
type process struct {
	Boot  string `json:"boot"`  // of the kernel
	Space string `json:"space"` // the pid's namespace
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot
}

func thisProcess() process {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return process{}
	}
	start, _, err := startOf(os.Getpid())
	if err != nil {
		return process{}
	}
	return process{Boot: strings.TrimSpace(string(boot)), Space: space, PID: os.Getpid(), Start: start}
}

// startOf reads the fields 3 (state) and 22 (start) of /proc/PID/stat; the second
// field, in brackets, may hold anything.
func startOf(pid int) (start string, zombie bool, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", false, err
	}
	fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:])
	if len(fields) < 20 {
		return "", false, errors.New("short stat")
	}
	return fields[19], fields[0] == "Z" || fields[0] == "X", nil
}

// isDead is true only if that is certain. A process that /proc does not show may
// just be another user's, so the kernel is asked for it.
func (p process) isDead() bool {
	self := thisProcess()
	if p.Boot == "" || p.PID <= 0 || p.Boot != self.Boot || p.Space != self.Space {
		return false
	}
	if errors.Is(syscall.Kill(p.PID, 0), syscall.ESRCH) {
		return true
	}
	start, zombie, err := startOf(p.PID)
	return err == nil && (zombie || start != p.Start)
}
