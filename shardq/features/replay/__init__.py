"""The replay after a failover: what a new master lacks of the last seconds is sent again by id."""
