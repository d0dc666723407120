// Package backoff has the kubelet's delays between the attempts of an operation on a volume or a plugin.
package backoff

import "time"

// First and Last are the kubelet's delays after the first failure and after many.
const (
	First = 500 * time.Millisecond
	Last  = 2*time.Minute + 2*time.Second
)

// After returns the delay after a failure with a number of consecutive earlier ones: it doubles from First to Last.
func After(earlier int) time.Duration {
	delay := First
	for range earlier {
		if delay *= 2; delay >= Last {
			return Last
		}
	}
	return delay
}
