package resources

// SharesOf is the shares that a weight of cgroup v2 stands for. Weight is coarser than shares: what was made a weight does not come
// back as the same number of shares, but makes the same weight again.
func SharesOf(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	return MinShares + (weight-1)*(maxShares-MinShares)/9999
}

// MilliOfShares is the request of cpu, in thousandths, that some shares are given for; 0 for less shares than there can be.
func MilliOfShares(shares uint64) int64 {
	if shares < MinShares {
		return 0
	}
	return int64((min(shares, maxShares)*milliPerCPU + sharesPerCPU - 1) / sharesPerCPU)
}

// MilliOfQuota is the limit of cpu, in thousandths, that a quota in a period is given for; 0 for none.
func MilliOfQuota(quota, period int64) int64 {
	if quota <= 0 || period <= 0 {
		return 0
	}
	return quota * milliPerCPU / period
}
