package podcgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Given reads the cpu and memory limits of a cgroup. A missing limit is resources.NoLimit, and a value of a controller
// that the machine does not have is 0. It fails with fs.ErrNotExist if the cgroup does not exist.
func (m *Machine) Given(name string) (resources.Resources, error) {
	given, err := readCgroup(m, name, givenByV1, givenByV2)
	if err != nil {
		return resources.Resources{}, fmt.Errorf("read the limits of the cgroup %s: %w", name, err)
	}
	return given, nil
}

func givenByV1(dirs map[string]string) (resources.Resources, error) {
	var given resources.Resources
	var err error
	if dir, ok := dirs["cpu"]; ok {
		if given.CPUShares, err = number(dir, "cpu.shares"); err != nil {
			return resources.Resources{}, err
		}
		given.CPUPeriod, err = optional(dir, "cpu.cfs_period_us")
		if err != nil {
			return resources.Resources{}, err
		}
		quota, err := text(dir, "cpu.cfs_quota_us")
		if err != nil {
			return resources.Resources{}, err
		}
		if given.CPUQuota, err = quotaOf(dir, "cpu.cfs_quota_us", quota); err != nil {
			return resources.Resources{}, err
		}
	}
	if dir, ok := dirs["memory"]; ok {
		limit, err := number(dir, "memory.limit_in_bytes")
		if err != nil {
			return resources.Resources{}, err
		}
		given.Memory = limitOf(limit)
	}
	return given, nil
}

func givenByV2(dir string) (resources.Resources, error) {
	if _, err := os.Stat(dir); err != nil {
		return resources.Resources{}, err
	}
	var given resources.Resources
	weight, err := number(dir, "cpu.weight")
	if err == nil {
		given.CPUShares = resources.SharesOf(weight)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return resources.Resources{}, err
	}
	cpuMax, err := text(dir, "cpu.max")
	if err != nil {
		return resources.Resources{}, err
	}
	quota, period, _ := strings.Cut(cpuMax, " ")
	if given.CPUQuota, err = quotaOf(dir, "cpu.max", quota); err != nil {
		return resources.Resources{}, err
	}
	if period != "" {
		if given.CPUPeriod, err = strconv.ParseUint(period, 10, 64); err != nil {
			return resources.Resources{}, fmt.Errorf("%s: %w", filepath.Join(dir, "cpu.max"), err)
		}
	}
	limit, err := number(dir, "memory.max")
	if err == nil {
		given.Memory = limitOf(limit)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return resources.Resources{}, err
	}
	return given, nil
}

// quotaOf reads a cpu quota. The kernel writes -1 or "max" for no quota; without the controller there is no file.
func quotaOf(dir, file, quota string) (int64, error) {
	switch quota {
	case "":
		return 0, nil
	case "max", "-1":
		return resources.NoLimit, nil
	}
	n, err := strconv.ParseInt(quota, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Join(dir, file), err)
	}
	return n, nil
}

// limitOf returns a memory limit in the form of resources.Resources.
func limitOf(bytes uint64) int64 {
	if bytes >= unlimitedV1 || bytes > math.MaxInt64 {
		return resources.NoLimit
	}
	return int64(bytes)
}
