package peertls

import "time"

// Recheck returns credentials with another interval of checks.
func (s Server) Recheck(every time.Duration) Server {
	s.recheck = every
	return s
}

// Recheck returns credentials with another interval of checks.
func (c Client) Recheck(every time.Duration) Client {
	c.recheck = every
	return c
}
