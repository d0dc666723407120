package preparecmd

import (
	"path/filepath"

	"github.com/quartet-node/quartet/internal/layout"
)

// Give gives the files of a service to a user, as --unit does for one that the machine knows.
func Give(stateDir string, service layout.Service, uid, gid int) error {
	own := filepath.Join(stateDir, string(service))
	return unit{service: service, stateDir: stateDir, own: own, uid: uid, gid: gid}.give()
}

// TakeBack gives them back to root.
func TakeBack(stateDir string, service layout.Service) error {
	return unit{service: service, stateDir: stateDir, own: filepath.Join(stateDir, string(service))}.takeBack()
}

// TakeSockets removes a directory of sockets that is not root's.
var TakeSockets = takeSockets

// NameUnits writes the users of the units into the file of a directory of sockets.
var NameUnits = nameUnits

// Lengthen is what --config does with --unit nodestatus, for a drop-in file.
var Lengthen = lengthen
