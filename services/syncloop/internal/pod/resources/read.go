package resources

// SharesOf returns the shares of a cgroup v2 weight. A weight is coarser than shares: the result may differ from the
// original shares, but has the same weight.
func SharesOf(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	return MinShares + (weight-1)*(maxShares-MinShares)/9999
}

// MilliOfShares returns the CPU request, in thousandths, of shares; 0 below the minimum of shares.
func MilliOfShares(shares uint64) int64 {
	if shares < MinShares {
		return 0
	}
	return int64((min(shares, maxShares)*milliPerCPU + sharesPerCPU - 1) / sharesPerCPU)
}

// MilliOfQuota returns the CPU limit, in thousandths, of a quota in a period; 0 for none.
func MilliOfQuota(quota, period int64) int64 {
	if quota <= 0 || period <= 0 {
		return 0
	}
	return quota * milliPerCPU / period
}
