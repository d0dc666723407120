package service

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// printSockets is nodeconfig.SocketsCommand with the flags of the service, for the supervisor that holds its sockets.
func printSockets(name nodeconfig.Service, args []string, stdout, stderr io.Writer) int {
	cfg, err := nodeconfig.Parse(name, args, io.Discard)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(cfg.SharedSockets(name))
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return nodeconfig.ExitWrong
	}
	return 0
}
